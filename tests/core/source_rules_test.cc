// Checks rules about the source text that the compiler does not check: which area may include
// which, where third-party headers may appear, that all random numbers come from Philox, and line
// lengths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "core/files.h"
#include "support/paths.h"

namespace halflife {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

struct Source {
  std::string path;  // Relative to src/.
  std::string area;
  std::string extension;
  std::vector<std::string> lines;  // Without // comments.
};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

std::vector<std::string> CodeLines(const std::string& text) {
  std::vector<std::string> lines = Lines(text);
  for (std::string& line : lines) line = line.substr(0, line.find("//"));
  return lines;
}

const std::set<std::string> kExtensions = {".h", ".cc", ".cu", ".cuh", ".inc"};

std::vector<Source> ReadSources(const fs::path& root) {
  std::vector<Source> sources;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(root, fs::directory_options::follow_directory_symlink)) {
    const std::string extension = entry.path().extension();
    if (!entry.is_regular_file() || !kExtensions.contains(extension)) continue;
    const fs::path path = entry.path().lexically_relative(root);
    sources.push_back(
        {path, *path.begin(), extension, CodeLines(ReadFile(entry.path(), ExitCode::kInternal))});
  }
  return sources;
}

// Returns the include of a line: {"core/error.h", project} or {"mpi.h", system}. Empty: there is
// none.
std::string IncludeOf(const std::string& line) {
  static const std::regex pattern(R"(^\s*#\s*include\s*["<]([^">]+)[">])");
  std::smatch match;
  return std::regex_search(line, match, pattern) ? match[1].str() : "";
}

bool StartsWithAny(const std::string& text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return text.starts_with(prefix); });
}

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {}},
    {"kernels", {"core"}},
    {"dist", {"core"}},
    {"data", {"core"}},
    {"ops", {"core", "kernels"}},
    {"optim", {"core", "kernels"}},
    {"model", {"core", "kernels", "ops", "dist"}},
    {"ckpt", {"core", "dist"}},
    {"eval", {"core", "kernels", "ops", "dist", "data", "model"}},
    {"train", {"core", "kernels", "ops", "optim", "dist", "data", "model", "ckpt", "eval"}},
    {"infer", {"core", "kernels", "ops", "dist", "data", "model", "ckpt"}},
    {"serve", {"core", "data", "model", "infer"}},
    {"report", {"core"}},
    {"sweep", {"core", "train", "report"}},
    {"interop", {"core", "data", "model", "ckpt"}},
    {"cli",
     {"core", "kernels", "ops", "optim", "dist", "data", "model", "ckpt", "eval", "train", "infer",
      "serve", "report", "sweep", "interop"}},
};

// Returns the level of a file of src/train. A level may include itself and lower levels.
int TrainRoom(const std::string& path) {
  static const std::vector<std::string> kRooms = {
      "train/config/", "train/lora/",   "train/preference/", "train/step/",
      "train/plan/",   "train/record/", "train/loop/"};
  const auto room = std::find_if(kRooms.begin(), kRooms.end(), [&](const std::string& prefix) {
    return path.starts_with(prefix);
  });
  return room == kRooms.end() ? 0 : static_cast<int>(room - kRooms.begin()) + 1;
}

const std::vector<std::string> kTorch = {"torch/", "ATen/", "c10/"};

// Describes the fault of one include of a file. Empty: there is none.
std::string FaultOf(const Source& source, const std::string& include) {
  const std::string area = include.substr(0, include.find('/'));
  if (kMayInclude.contains(area) && include.find('/') != std::string::npos && area != source.area &&
      !kMayInclude.at(source.area).contains(area)) {
    return source.area + " may not include " + area;
  }
  if (source.area == "train" && area == "train" && TrainRoom(include) > TrainRoom(source.path)) {
    return source.path + " may not include a later room's " + include;
  }
  const bool header = source.extension != ".cc";
  if (include == "torch/torch.h") return "takes 17 s to compile; include the ATen/ops it needs";
  if (StartsWithAny(include, kTorch)) {
    static const std::set<std::string> kFree = {"core", "kernels", "dist",
                                                "data", "ckpt",    "report"};
    static const std::set<std::string> kHeaders = {"ops", "model", "eval", "train", "infer"};
    if (kFree.contains(source.area)) return source.area + " is free of LibTorch";
    if (header && !kHeaders.contains(source.area)) return "LibTorch in a header of " + source.area;
  }
  const bool communication =
      include == "mpi.h" || include == "nccl.h" || include == "nccl_device.h";
  if (communication && source.area != "dist") return "MPI and NCCL stay in src/dist";
  if (communication && header) return "MPI and NCCL stay in .cc files";
  static const std::vector<std::string> kSourceOnly = {
      "google/protobuf", "spdlog/", "fmt/", "hdf5", "H5", "nlohmann/json.hpp"};
  if (header && (StartsWithAny(include, kSourceOnly) || include.ends_with(".pb.h"))) {
    return "this header stays in .cc files";
  }
  return "";
}

const std::vector<Source>& AllSources() {
  static const std::vector<Source> sources = ReadSources(fs::path(test::kSourceDir) / "src");
  return sources;
}

TEST(SourceRules, IncludesFollowTheLayering) {
  ASSERT_GT(AllSources().size(), 20u);
  for (const Source& source : AllSources()) {
    ASSERT_TRUE(kMayInclude.contains(source.area))
        << source.path << ": a new area needs its row here";
    for (size_t line = 0; line < source.lines.size(); ++line) {
      const std::string include = IncludeOf(source.lines[line]);
      if (include.empty()) continue;
      EXPECT_EQ(FaultOf(source, include), "")
          << "src/" << source.path << ":" << line + 1 << " includes " << include;
    }
  }
}

TEST(SourceRules, HeadersAreGuarded) {
  for (const Source& source : AllSources()) {
    if (source.extension != ".h") continue;
    EXPECT_NE(std::find(source.lines.begin(), source.lines.end(), "#pragma once"),
              source.lines.end())
        << source.path;
  }
}

// Finds generators other than Philox. A sequential generator depends on the world size and on
// earlier draws. A Philox draw does not.
bool IsForeignRandom(const std::string& line) {
  static const std::regex pattern(
      R"(\b(at|torch)::(rand|randn|randint|randperm)(_like)?\b)"
      R"(|\b(at|torch)::(bernoulli|normal|multinomial|dropout)\b)"
      R"(|\bmanual_seed\b|\bstd::(mt19937(_64)?|default_random_engine)\b)"
      R"(|(\.|->)(normal_|uniform_|bernoulli_|random_|exponential_)\()"
      R"(|ATen/ops/(rand|randn|randint|randperm|bernoulli|normal|multinomial|dropout)(_like)?\.h)");
  return std::regex_search(line, pattern);
}

TEST(SourceRules, RandomNumbersAreOurOwn) {
  for (const Source& source : AllSources()) {
    // These files reproduce the numbers that NumPy drew for published data, and nothing else.
    if (source.path.starts_with("data/synthetic/numpy_mqar.")) continue;
    for (size_t line = 0; line < source.lines.size(); ++line) {
      EXPECT_FALSE(IsForeignRandom(source.lines[line]))
          << "src/" << source.path << ":" << line + 1 << ": use core/philox.h";
    }
  }
}

// Returns whether a line makes a training step wait for the GPU, because it reads a value or copies
// from pageable memory.
bool MakesTheHostWait(const std::string& line) {
  static const std::regex pattern(
      R"((\.|->)(item(<\w+>)?|cpu|is_nonzero|masked_select)\()"
      R"(|\bat::(nonzero|masked_select|_unique2|unique_consecutive|_local_scalar_dense)\()"
      R"(|(\.|->)to\(([\w.()>-]*device|at::kCPU|at::kCUDA))"
      R"(|\bat::tensor\([^;]*options)");
  return std::regex_search(line, pattern);
}

// Returns whether a file's code runs within a training step.
bool RunsInAStep(const std::string& path) {
  // The functions that implement these transfers, and measurements before the first step.
  if (path == "ops/torch/host_transfer.cc" || path == "ops/sequence/exchange_cost.cc") return false;
  return StartsWithAny(path, {"kernels/", "ops/", "model/", "train/step/", "eval/batch_tensors."});
}

TEST(SourceRules, AStepWaitsForItsDeviceAtOnePlace) {
  size_t num_files = 0;
  for (const Source& source : AllSources()) {
    if (!RunsInAStep(source.path)) continue;
    ++num_files;
    for (size_t line = 0; line < source.lines.size(); ++line) {
      EXPECT_FALSE(MakesTheHostWait(source.lines[line]))
          << "src/" << source.path << ":" << line + 1 << ": use ops/torch/host_transfer.h";
    }
  }
  EXPECT_GT(num_files, 100u);
}

// Returns the width of a line in columns, which are characters and not bytes of UTF-8.
size_t NumColumns(const std::string& line) {
  return static_cast<size_t>(std::count_if(
      line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
}

// clang-format breaks code at 100 columns and leaves comments as they are. What it cannot break is
// a single word, such as a URL, which may have a line of its own, also in a comment.
bool IsTooLong(const std::string& line) {
  constexpr size_t kMaxColumns = 100;
  if (NumColumns(line) <= kMaxColumns) return false;
  static const std::regex one_word(R"(\s*(// )?\S+)");
  return !std::regex_match(line, one_word);
}

// Returns the numbers (from 1) of the lines that are too long. Lines of raw strings are texts of
// the program, such as a style sheet, so they may have any length. clang-format ignores them too.
std::vector<size_t> LongLines(const std::vector<std::string>& lines) {
  static const std::regex opening(R"re(R"([^ ()\\]*)\()re");
  std::vector<size_t> found;
  std::string closing;  // The end of the open raw string. Empty: no raw string is open.
  for (size_t line = 0; line < lines.size(); ++line) {
    const bool inside = !closing.empty();
    size_t at = 0;
    std::smatch match;
    while (true) {
      if (closing.empty()) {
        const std::string rest = lines[line].substr(at);
        if (!std::regex_search(rest, match, opening)) break;
        closing = ")" + match[1].str() + "\"";
        at += static_cast<size_t>(match.position() + match.length());
      } else {
        const size_t end = lines[line].find(closing, at);
        if (end == std::string::npos) break;
        at = end + closing.size();
        closing.clear();
      }
    }
    if (!inside && IsTooLong(lines[line])) found.push_back(line + 1);
  }
  return found;
}

TEST(SourceRules, LinesFitAHundredColumns) {
  size_t num_files = 0;
  for (const char* folder : {"src", "tests", "bench", "proto"}) {
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(fs::path(test::kSourceDir) / folder)) {
      const std::string extension = entry.path().extension();
      if (!entry.is_regular_file() || !(kExtensions.contains(extension) || extension == ".proto")) {
        continue;
      }
      ++num_files;
      const std::vector<std::string> lines = Lines(ReadFile(entry.path(), ExitCode::kInternal));
      for (const size_t line : LongLines(lines)) {
        ADD_FAILURE() << entry.path().lexically_relative(test::kSourceDir).string() << ":" << line
                      << " has " << NumColumns(lines[line - 1]) << " columns";
      }
    }
  }
  EXPECT_GT(num_files, 300u);
}

// Each check must find the violation that it is written for.
TEST(SourceRules, TheChecksCatchWhatTheyForbid) {
  const auto fault = [](const char* area, const char* extension, const char* include) {
    return FaultOf({"x", area, extension, {}}, include);
  };
  EXPECT_EQ(fault("core", ".cc", "dist/mesh.h"), "core may not include dist");
  EXPECT_EQ(fault("dist", ".cc", "data/batch.h"), "dist may not include data");
  EXPECT_EQ(fault("eval", ".cc", "train/x.h"), "eval may not include train");
  EXPECT_EQ(fault("eval", ".cc", "infer/x.h"), "eval may not include infer");
  EXPECT_EQ(fault("infer", ".cc", "eval/x.h"), "infer may not include eval");
  EXPECT_EQ(fault("train", ".cc", "eval/x.h"), "");
  EXPECT_EQ(fault("report", ".cc", "train/x.h"), "report may not include train");
  const auto train_fault = [](const char* path, const char* include) {
    return FaultOf({path, "train", ".cc", {}}, include);
  };
  EXPECT_EQ(train_fault("train/loop/x.cc", "train/step/y.h"), "");
  EXPECT_EQ(train_fault("train/step/x.cc", "train/device.h"), "");
  EXPECT_NE(train_fault("train/step/x.cc", "train/record/y.h"), "");
  EXPECT_NE(train_fault("train/device.cc", "train/config/y.h"), "");
  EXPECT_NE(fault("model", ".h", "torch/torch.h"), "");
  EXPECT_NE(fault("ckpt", ".cc", "ATen/core/Tensor.h"), "");
  EXPECT_NE(fault("kernels", ".cu", "ATen/core/Tensor.h"), "");
  EXPECT_NE(fault("cli", ".h", "ATen/core/Tensor.h"), "");
  EXPECT_EQ(fault("model", ".h", "ATen/core/Tensor.h"), "");
  EXPECT_NE(fault("train", ".cc", "mpi.h"), "");
  EXPECT_NE(fault("dist", ".h", "mpi.h"), "");
  EXPECT_EQ(fault("dist", ".cc", "mpi.h"), "");
  EXPECT_NE(fault("train", ".h", "halflife/run_config.pb.h"), "");
  EXPECT_NE(fault("data", ".h", "hdf5.h"), "");
  EXPECT_NE(fault("core", ".h", "nlohmann/json.hpp"), "");
  EXPECT_EQ(fault("core", ".h", "nlohmann/json_fwd.hpp"), "");
  EXPECT_EQ(IncludeOf("  # include <a/b.h>"), "a/b.h");
  EXPECT_EQ(IncludeOf("includes \"a/b.h\""), "");
  for (const char* line : {"x = at::rand({2});", "torch::manual_seed(1);", "w.normal_(0, 1);",
                           "at::dropout(x, p, true)", "std::mt19937 random(1);"}) {
    EXPECT_TRUE(IsForeignRandom(line)) << line;
  }
  EXPECT_FALSE(IsForeignRandom("const float u = ToUniform(Draw(key, 1, 2, 3).x[0]);"));
  EXPECT_FALSE(IsForeignRandom("at::random_access(x); operand(at::range)"));
  for (const char* line :
       {"loss.item<double>()", "x.item().toDouble()", "const auto y = x->cpu();",
        "x.to(device, at::kLong)", "x.to(q.device())", "x.to(chunks->device)", "sums.to(at::kCPU)",
        "at::nonzero(targets >= 0)", "at::tensor(rates, x.options())"}) {
    EXPECT_TRUE(MakesTheHostWait(line)) << line;
  }
  for (const char* line :
       {"x.to(at::kFloat)", "Upload(x.to(ComputeType(x)), x.device())", "x.is_cpu()",
        "at::nonzero_static(x, n)", "at::tensor(values, at::kFloat)", "json.items()"}) {
    EXPECT_FALSE(MakesTheHostWait(line)) << line;
  }
  EXPECT_EQ(NumColumns("\u2550 dq\u00e9"), 5u);
  EXPECT_TRUE(IsTooLong("// " + std::string(49, 'a') + " " + std::string(49, 'a')));
  EXPECT_FALSE(IsTooLong("// " + std::string(48, 'a') + " " + std::string(48, 'a')));
  EXPECT_TRUE(IsTooLong("    call(\"" + std::string(90, 'a') + "\"); // why"));
  const std::string too_long = std::string(60, 'a') + " " + std::string(60, 'a');
  EXPECT_THAT(LongLines({"f(R\"x(", too_long, "a)\" b", ")x\");", too_long}), ElementsAre(5));
  EXPECT_THAT(LongLines({"R\"(" + too_long + ")\"", too_long}), ElementsAre(1, 2));
  EXPECT_FALSE(IsTooLong("  // https://" + std::string(120, 'a')));
  EXPECT_FALSE(IsTooLong(std::string(60, ' ') + "\"" + std::string(60, 'a') + "\","));
}

}  // namespace
}  // namespace halflife
