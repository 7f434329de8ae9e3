// A folder with 12,000 planted faults, read under AddressSanitizer and UBSan: refused with an Error, or sound.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/philox.h"
#include "interop/hf_folder.h"
#include "interop/hf_folder_fixture.h"
#include "support/temp_dir.h"

namespace halflife::interop {
namespace {

constexpr int kMutationsPerFile = 3000;

// One to three edits: a byte flipped, a stretch removed, doubled, cut off or overwritten by a number's digits.
std::string Mutated(const std::string& bytes, uint64_t number) {
  const RandomKey key = MakeRandomKey(17, RandomPurpose::kInit, 0);
  std::string text = bytes;
  const uint32_t edits = 1 + Draw(key, number, 0, 0).x[0] % 3;
  for (uint32_t edit = 0; edit < edits && !text.empty(); ++edit) {
    const RandomCounter draw = Draw(key, number, edit + 1, 0);
    const size_t place = draw.x[1] % text.size();
    const size_t length = std::min<size_t>(1 + draw.x[2] % 12, text.size() - place);
    switch (draw.x[0] % 5) {
      case 0:
        text[place] = static_cast<char>(text[place] ^ (1u << draw.x[3] % 8));
        break;
      case 1:
        text.erase(place, length);
        break;
      case 2:
        text.insert(place, text.substr(place, length));
        break;
      case 3:
        text.resize(place);
        break;
      default:
        text.replace(place, length, std::to_string(int64_t{1} << draw.x[3] % 63));
        break;
    }
  }
  return text;
}

// Everything that the folder says it has can be read.
void ReadAll(const HfFolder& folder) {
  for (const auto& [name, tensor] : folder.tensors()) {
    ASSERT_LE(tensor.count(), 1000) << name;  // the files hold 18 elements
    std::vector<float> values(static_cast<size_t>(tensor.count()));
    try {
      folder.Read(tensor, 0, tensor.count(), values.data());
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ExitCode::kData) << error.what();
    }
  }
}

TEST(HostileFolderTest, MutatedFilesAreRefusedOrSound) {
  const test::TempDir dir;
  const auto folder = dir / "model";
  test::WriteShardedFolder(folder);
  int refused = 0;
  for (const char* name :
       {"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors"}) {
    const std::string good = ReadFile(folder / name, ExitCode::kData);
    for (int i = 0; i < kMutationsPerFile; ++i) {
      test::WriteText(folder / name, Mutated(good, static_cast<uint64_t>(i)));
      try {
        ReadAll(HfFolder::Open(folder));
      } catch (const Error& error) {
        ++refused;
        ASSERT_EQ(error.code(), ExitCode::kData)
            << name << ", mutation " << i << ": " << error.what();
      }
    }
    test::WriteText(folder / name, good);
  }
  ReadAll(HfFolder::Open(folder));
  // Most faults hit a number, a name or a length; harmless are those in values and in the config's own words.
  EXPECT_GT(refused, 2 * kMutationsPerFile);
}

}  // namespace
}  // namespace halflife::interop
