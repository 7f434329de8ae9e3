#include "ckpt/reader.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "ckpt/damage.h"
#include "ckpt/step_dir.h"
#include "ckpt/step_files.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "core/log.h"
#include "core/threads.h"

namespace halflife::ckpt {
namespace {

namespace fs = std::filesystem;

// Returns the path without a trailing slash, which would hide the last name.
fs::path Normal(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// Returns the published steps of RUN/ckpt, or of `run` itself, the newest first. Throws Error
// kNoUsableCheckpoint if there is none.
std::vector<StepDir> RequireSteps(const fs::path& run) {
  for (const fs::path& ckpt_dir : {run / "ckpt", run}) {
    std::vector<StepDir> steps = ListPublished(ckpt_dir);
    if (!steps.empty()) return steps;
  }
  HL_FAIL(
      ExitCode::kNoUsableCheckpoint, "no checkpoint in ", run.string(), ": looked for ",
      kManifestName,
      ", ckpt/step_* and step_* in it. Use the folder of a run that has saved a step, or of one of "
      "its steps.");
}

// Returns "1200, 1100 and 3 more", the newest first.
std::string StepNumbers(const std::vector<StepDir>& steps) {
  constexpr size_t kMaxNamed = 10;
  std::vector<uint64_t> numbers;
  for (const StepDir& step : steps) numbers.push_back(step.step);
  numbers.resize(std::min(numbers.size(), kMaxNamed));
  return Join(numbers, ", ") +
         (steps.size() > kMaxNamed ? Concat(" and ", steps.size() - kMaxNamed, " more") : "");
}

// Returns the step of `run` named `name`: "latest", "best" or a number.
fs::path SelectStep(const fs::path& run, const std::string& name) {
  const std::vector<StepDir> steps = RequireSteps(run);
  if (name == "latest") return steps.front().path;
  if (name == "best") {
    const std::optional<BestStep> best = FindBestStep(steps.front().path.parent_path());
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, best.has_value(), run.string(),
                "@best: no step has a measure (keep_best's metric, val_loss or loss). Use ",
                run.string(), "@latest, or the number of a step: ", StepNumbers(steps), ".");
    HL_INFO("ckpt", run.string(), "@best is step ", ParseStepName(best->path)->step,
            ", which has the lowest ", best->metric, ", ", ShortestText(best->value));
    return best->path;
  }
  for (const StepDir& step : steps)
    if (Concat(step.step) == name) return step.path;
  HL_FAIL(ExitCode::kNoUsableCheckpoint, run.string(), " has no step '", name,
          "'. Use latest, best, or one of ", StepNumbers(steps), ".");
}

using Metrics = std::map<std::string, double>;

// Returns the name of the measure, or an empty string if no step has one. `steps`: the newest
// first. A save adds "best_<metric>" to the metrics of a step if ckpt.keep_best names a validation
// metric.
std::string MeasureOf(const std::vector<std::pair<StepDir, Metrics>>& steps) {
  constexpr std::string_view kBest = "best_";
  for (const auto& [step, metrics] : steps) {
    const auto best = metrics.lower_bound(std::string(kBest));
    if (best == metrics.end() || !best->first.starts_with(kBest)) continue;
    return best->first.substr(kBest.size());
  }
  for (const char* measure : {"val_loss", "loss"}) {
    for (const auto& [step, metrics] : steps)
      if (metrics.contains(measure)) return measure;
  }
  return "";
}

}  // namespace

int64_t TensorInfo::count() const { return CountElements(shape); }

fs::path FindStep(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    const std::string text = path.string();
    const size_t at = text.rfind('@');
    const fs::path run = text.substr(0, at);
    if (at != std::string::npos && fs::is_directory(run, ignored))
      return SelectStep(run, text.substr(at + 1));
  }
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, fs::is_directory(path, ignored), path.string(),
              " is not a folder. Use the folder of a run or of one of its steps, or RUN@latest, "
              "RUN@best or RUN@1200 of a run's folder RUN.");
  if (fs::exists(path / kManifestName, ignored) || ParseStepName(Normal(path))) return path;
  return RequireSteps(path).front().path;
}

std::optional<BestStep> FindBestStep(const fs::path& ckpt_dir) {
  std::vector<std::pair<StepDir, Metrics>> steps;
  for (const StepDir& step : ListPublished(ckpt_dir)) {
    try {
      steps.emplace_back(step, StepReader::Open(step.path).state().metrics);
    } catch (const Error& error) {
      HL_WARN("ckpt", step.path.filename().string(),
              " is left out of the search for the best step: ", error.message());
    }
  }
  const std::string measure = MeasureOf(steps);
  std::optional<BestStep> best;
  for (const auto& [step, metrics] : steps) {
    const auto found = metrics.find(measure);
    if (found == metrics.end() || std::isnan(found->second)) continue;
    if (!best || found->second < best->value) best = BestStep{step.path, measure, found->second};
  }
  return best;
}

fs::path RunOfStep(const fs::path& step_dir) {
  const fs::path parent = Normal(step_dir).parent_path();
  return parent.filename() == "ckpt" ? parent.parent_path() : fs::path();
}

class StepReader::Impl {
 public:
  Impl(const fs::path& step_dir, const std::string& bytes)
      : path_(step_dir),
        hash_(HashBytes(bytes)),
        manifest_(DecodeManifest(bytes, (step_dir / kManifestName).string())),
        files_(step_dir, manifest_) {
    CheckCoverage(manifest_, (step_dir / kManifestName).string());
    const auto named = ParseStepName(Normal(step_dir));
    CheckDamage(!named || named->step == manifest_.state.step, kManifestName, " is of step ",
                manifest_.state.step, "; was the folder renamed?");
    files_.CheckSizes();
    for (const TensorEntry& tensor : manifest_.tensors) {
      std::vector<std::string> arrays = manifest_.array_names();
      std::erase_if(arrays, [&](const std::string& array) { return !tensor.has(array); });
      infos_.push_back({tensor.name, tensor.shape, tensor.aliases, std::move(arrays),
                        static_cast<int>(tensor.fragments.size())});
      by_name_[tensor.name] = &tensor;
      for (const std::string& alias : tensor.aliases) by_name_[alias] = &tensor;
    }
    for (const FileEntry& file : manifest_.files) file_infos_.push_back({file.name, file.bytes});
  }

  const TensorEntry& Tensor(const std::string& name) const {
    const auto found = by_name_.find(name);
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, found != by_name_.end(), path_.string(),
                " has no tensor '", name, "'");
    return *found->second;
  }

  void ReadRange(std::string_view array, const std::string& name, int64_t begin, int64_t end,
                 float* out) const {
    const TensorEntry& tensor = Tensor(name);
    HL_CHECK(0 <= begin && begin <= end && end <= tensor.count(), "elements [", begin, ", ", end,
             ") of ", name, ", which has ", tensor.count());
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, tensor.has(array), path_.string(), " has no ", array,
                "/", name);
    const StoredDType dtype = manifest_.FindArray(array)->dtype;
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, dtype == StoredDType::kF32, array, " is stored as ",
                Name(dtype), ", not F32");
    BlockCursor cursor(files_);
    for (const StoredFragment& fragment : tensor.fragments) {
      const int64_t from = std::max(begin, fragment.begin), to = std::min(end, fragment.end);
      if (fragment.array != array || from >= to) continue;
      cursor.Copy(tensor, fragment, from, to, out + (from - begin));
    }
  }

  // Returns the damage of one file, if any.
  std::vector<Damage> VerifyFile(int file) const {
    try {
      files_.CheckWholeFile(file);
    } catch (const DamageError& error) {
      return {{manifest_.files[file].name, error.tensor(), error.message(), error.offset()}};
    } catch (const Error& error) {
      // could not be read, so its state is unknown
      if (error.code() == ExitCode::kCheckpointIo) throw;
      return {{manifest_.files[file].name, "", error.message(), 0}};
    }
    return {};
  }

  // Verifies the files next to the manifest that are for people. If one differs from the manifest,
  // `xxh128sum -c` or a reader would get a wrong answer.
  std::vector<Damage> VerifyCompanions() const {
    const auto read = [this](const char* name) -> std::optional<std::string> {
      std::error_code ignored;
      if (!fs::is_regular_file(path_ / name, ignored)) return std::nullopt;
      if (fs::file_size(path_ / name, ignored) > kMaxManifestBytes) return std::nullopt;
      return ReadFile(path_ / name, ExitCode::kCheckpointIo);
    };
    const auto damage = [](const char* name, const char* words) {
      return std::vector<Damage>{{name, "", Concat(name, words), 0}};
    };
    const auto text = read(kManifestTextName), sums = read(kSumsName);
    if (!text) return damage(kManifestTextName, ": missing, or not of a text's size");
    if (!sums) return damage(kSumsName, ": missing, or not of a list's size");
    const std::string expected = SumsText(manifest_, hash_, HashBytes(*text));
    if (*sums == expected) return {};
    // Only the last line depends on the text. The others follow from the manifest.
    const size_t last_line = expected.rfind('\n', expected.size() - 2) + 1;
    const bool text_differs =
        sums->size() == expected.size() && sums->starts_with(expected.substr(0, last_line));
    return text_differs
               ? damage(kManifestTextName, ": does not have the hash that XXH128SUMS gives it")
               : damage(kSumsName, ": does not hold the hashes of the manifest");
  }

  std::vector<Damage> UnknownShards() const {
    std::set<std::string> known;
    for (const FileEntry& file : manifest_.files) known.insert(file.name);
    std::vector<Damage> damages;
    std::error_code error;
    fs::directory_iterator entry(path_, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (entry->path().extension() != ".safetensors" || known.contains(name)) continue;
      damages.push_back({name, "", name + ": not a file of this step", 0});
    }
    HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot list ", path_.string(), ": ",
                error.message());
    return damages;
  }

  fs::path path_;
  Hash128 hash_;
  Manifest manifest_;
  StepFiles files_;
  std::vector<TensorInfo> infos_;
  std::vector<FileInfo> file_infos_;

 private:
  std::map<std::string, const TensorEntry*> by_name_;
};

StepReader StepReader::Open(const fs::path& step_dir) {
  try {
    return StepReader(std::make_unique<Impl>(step_dir, ReadManifestBytes(step_dir)));
  } catch (const DamageError& error) {
    HL_FAIL(ExitCode::kNoUsableCheckpoint, step_dir.string(),
            " is not a usable checkpoint: ", error.message(),
            ". Use another step of the run by its folder; `halflife ckpt ls` lists them.");
  }
}

StepReader::StepReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StepReader::StepReader(StepReader&&) noexcept = default;
StepReader& StepReader::operator=(StepReader&&) noexcept = default;
StepReader::~StepReader() = default;

const fs::path& StepReader::path() const { return impl_->path_; }
const StepState& StepReader::state() const { return impl_->manifest_.state; }
const std::vector<TensorInfo>& StepReader::tensors() const { return impl_->infos_; }
const std::vector<FileInfo>& StepReader::files() const { return impl_->file_infos_; }
const Manifest& StepReader::manifest() const { return impl_->manifest_; }
Hash128 StepReader::manifest_hash() const { return impl_->hash_; }
uint64_t StepReader::total_bytes() const { return impl_->manifest_.total_bytes; }

void StepReader::ReadTensor(std::string_view array, const std::string& name, float* out) const {
  impl_->ReadRange(array, name, 0, impl_->Tensor(name).count(), out);
}

void StepReader::ReadRange(std::string_view array, const std::string& name, int64_t begin,
                           int64_t end, float* out) const {
  impl_->ReadRange(array, name, begin, end, out);
}

std::vector<StepReader::Damage> StepReader::Verify(int num_threads) const {
  const int num_files = static_cast<int>(files().size());
  std::vector<std::vector<Damage>> by_file(num_files);
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr failure;  // the first one
  const auto work = [&] {
    try {
      for (int file = next++; file < num_files; file = next++) {
        by_file[file] = impl_->VerifyFile(file);
      }
    } catch (...) {
      next = num_files;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < std::min(num_threads, num_files); ++i)
    threads.push_back(StartThread<std::jthread>(work));
  work();
  threads.clear();  // joins all
  if (failure) std::rethrow_exception(failure);
  std::vector<Damage> damages = impl_->UnknownShards();
  by_file.push_back(impl_->VerifyCompanions());
  for (const std::vector<Damage>& found : by_file) {
    damages.insert(damages.end(), found.begin(), found.end());
  }
  return damages;
}

}  // namespace halflife::ckpt
