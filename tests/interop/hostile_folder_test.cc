// A folder with 12,000 planted faults, read under AddressSanitizer and UBSan, is refused with an
// Error or read consistently.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "interop/hf_folder.h"
#include "interop/hf_folder_fixture.h"
#include "support/mutate.h"
#include "support/temp_dir.h"

namespace halflife::interop {
namespace {

constexpr int kMutationsPerFile = 3000;

// Applies random damage, or replaces a length, offset or size by an arbitrary number.
std::string Damaged(const std::string& bytes, std::mt19937_64& random) {
  if (random() % 4 != 0) return test::Mutated(bytes, random);
  const size_t place = random() % bytes.size(), length = random() % 12 + 1;
  return std::string(bytes).replace(place, length, std::to_string(int64_t{1} << random() % 63));
}

// Reads everything that the folder declares.
void ReadAll(const HfFolder& folder) {
  for (const auto& [name, tensor] : folder.tensors()) {
    ASSERT_LE(tensor.count(), 1000) << name;  // The files have 18 elements.
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
  std::mt19937_64 random(17);
  int refused = 0;
  for (const char* name :
       {"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors"}) {
    const std::string good = ReadFile(folder / name, ExitCode::kData);
    for (int i = 0; i < kMutationsPerFile; ++i) {
      test::WriteText(folder / name, Damaged(good, random));
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
  // Most faults hit a number, a name or a length. Faults in values and in ignored config entries
  // are harmless.
  EXPECT_GT(refused, 2 * kMutationsPerFile);
}

}  // namespace
}  // namespace halflife::interop
