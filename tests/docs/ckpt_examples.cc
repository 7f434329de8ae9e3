// The examples of src/ckpt's headers. The parameters of a function are the variables that its
// example uses.
#include "ckpt/collective.h"
#include "ckpt/diff.h"
#include "ckpt/direct_writer.h"
#include "ckpt/manifest.h"
#include "ckpt/reader.h"
#include "ckpt/retention.h"
#include "ckpt/run_lock.h"
#include "ckpt/safetensors.h"
#include "ckpt/shard_writer.h"
#include "ckpt/slice_reader.h"
#include "ckpt/step_files.h"
#include "ckpt/store.h"

namespace halflife::ckpt {

using Path = std::filesystem::path;

std::string OpenAttempt();
std::string WriteAndDescribe();
void CollectiveExample(dist::Communicator& comm) {
#include "examples/ckpt/collective.h"
}

void DiffExample(const StepReader& a, const StepReader& b) {
#include "examples/ckpt/diff.h"
}

void ManifestExample(const Manifest& manifest) {
#include "examples/ckpt/manifest.h"
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

void DirectWriterExample(const Path& path, uint64_t num_bytes, const char* data, size_t count) {
#include "examples/ckpt/direct_writer.h"
}

void SafetensorsExample(const std::vector<safetensors::Entry>& entries,
                        const std::map<std::string, std::string>& metadata, const Path& path) {
#include "examples/ckpt/safetensors.h"
}

void ShardWriterExample(const ArenaView& arena, int rank, const Path& tmp_dir) {
#include "examples/ckpt/shard_writer.h"
}

void SliceReaderExample(const Path& step_dir, const Manifest& manifest, const ArenaView& arena,
                        int rank) {
#include "examples/ckpt/slice_reader.h"
}

void StepFilesExample(const Path& step_dir, const Manifest& manifest, const TensorEntry& tensor,
                      const StoredFragment& fragment, int64_t begin, int64_t end, void* out) {
#include "examples/ckpt/step_files.h"
}

void StoreExample(const Path& run_dir, dist::Communicator& control, const ArenaView& arena,
                  const StepState& state, const Expectation& expectation) {
#include "examples/ckpt/store.h"
}

}  // namespace halflife::ckpt
