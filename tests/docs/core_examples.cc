// The examples of src/core's headers. The parameters of a function are the variables that its
// example uses.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/bfloat16.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/files.h"
#include "core/json_text.h"
#include "core/log.h"
#include "core/nearest.h"
#include "core/pairwise_sum.h"
#include "core/philox.h"
#include "core/tfrecord.h"
#include "core/trace.h"

namespace halflife {

using Path = std::filesystem::path;
using Names = std::vector<std::string>;

void Bfloat16Example() {
#include "examples/core/bfloat16.h"
}

struct Action {
  std::string name;
};
void ConcatExample(int total, const Names& names, const std::vector<Action>& actions) {
#include "examples/core/concat.h"
}

void ErrorExample(int begin, int end, bool file, const std::string& path, const std::string& name,
                  const std::string& names) {
#include "examples/core/error.h"
}

void FaultExample() {
#include "examples/core/fault.h"
}

void FilesExample(const Path& run, const std::string& text, const Path& dataset_tmp,
                  const Path& dataset) {
#include "examples/core/files.h"
}

void JsonlExample(const Path& run) {
#include "examples/core/json_text.h"
}

void LogExample(int rank, int world, const Path& run_dir, uint64_t step, uint64_t bytes) {
#include "examples/core/log.h"
}

void NearestExample(const std::string& name, const Names& known) {
#include "examples/core/nearest.h"
}

void PairwiseSumExample(const std::vector<double>& terms) {
#include "examples/core/pairwise_sum.h"
}

void PhiloxExample(uint64_t seed, uint32_t layer, uint64_t sample, uint32_t position,
                   uint32_t channel) {
#include "examples/core/philox.h"
}

struct Event {
  std::string SerializeAsString() const { return ""; }
};
void TfRecordExample(const Event& event, int fd, const Path& path, ExitCode code) {
#include "examples/core/tfrecord.h"
}

void TraceExample(int rank, int64_t begin_us, int64_t end_us, int64_t bytes, const Path& path) {
#include "examples/core/trace.h"
}

}  // namespace halflife
