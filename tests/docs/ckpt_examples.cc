// The examples of src/ckpt's headers. The parameters of a function are the variables that its
// example uses.
#include "ckpt/collective.h"
#include "ckpt/diff.h"
#include "ckpt/merged_weights.h"
#include "ckpt/reader.h"
#include "ckpt/retention.h"
#include "ckpt/run_lock.h"
#include "ckpt/safetensors.h"
#include "ckpt/store.h"

namespace halflife::ckpt {

using Path = std::filesystem::path;

std::string OpenAttempt();
std::string WriteAndDescribe();
std::string Assemble(const std::vector<std::string>& results);
void CollectiveExample(dist::Communicator& comm) {
#include "examples/ckpt/collective.h"
}

void DiffExample(const StepReader& a, const StepReader& b) {
#include "examples/ckpt/diff.h"
}

void MergedWeightsExample(const Path& step_dir) {
#include "examples/ckpt/merged_weights.h"
}

void ReaderExample(const Path& path, float* out) {
#include "examples/ckpt/reader.h"
}

void RetentionExample(const Path& ckpt_dir, const RetentionPolicy& policy) {
#include "examples/ckpt/retention.h"
}

void RunLockExample(const Path& run_dir) {
#include "examples/ckpt/run_lock.h"
}

void SafetensorsExample(const std::vector<safetensors::Entry>& entries,
                        const std::map<std::string, std::string>& metadata, const Path& path) {
#include "examples/ckpt/safetensors.h"
}

void StoreExample(const Path& run_dir, dist::Communicator& control, const ArenaView& arena,
                  const StepState& state, const Expectation& expectation) {
#include "examples/ckpt/store.h"
}

}  // namespace halflife::ckpt
