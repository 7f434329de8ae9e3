// The examples of src/dist's headers. The parameters of a function are the variables that its
// example uses.
#include "dist/communicator.h"
#include "dist/flight_report.h"
#include "dist/gradient_reducer.h"
#include "dist/local_communicator.h"
#include "dist/mesh.h"
#include "dist/parameter_gather.h"
#include "dist/parameter_layout.h"
#include "dist/rank_context.h"
#include "dist/rehearsal.h"
#include "dist/request.h"
#include "dist/watchdog.h"

namespace halflife::dist {

void Launch(int bucket);
void BucketProgressExample(const ParameterLayout& layout, int param, int bucket) {
#include "examples/dist/parameter_layout.h.2"
}

void CommunicatorExample(Communicator& comm, double* norms) {
#include "examples/dist/communicator.h"
}

void Print(const std::string& line);
void FlightReportExample(const std::filesystem::path& run, int64_t now_us) {
#include "examples/dist/flight_report.h"
}

void GradientReducerExample(const ParameterLayout& layout, Communicator& comm, TensorRef grads,
                            int param) {
#include "examples/dist/gradient_reducer.h"
}

void DeadlineExample(const RankConfig& options) {
#include "examples/dist/request.h"
}

void LocalCommunicatorExample() {
#include "examples/dist/local_communicator.h"
}

void MeshExample(std::unique_ptr<RankContext>& owner) {
  RankContext& context = *owner;
#include "examples/dist/mesh.h"
}

void ParameterGatherExample(const ParameterLayout& layout, Communicator& comm, TensorRef weights,
                            const std::vector<std::vector<int>>& params_of_layer, int64_t n,
                            int layer) {
#include "examples/dist/parameter_gather.h"
}

void Reduce(GradientReducer& reducer);
void RehearsalExample(const ParameterLayout& layout) {
#include "examples/dist/rehearsal.h"
}

void Train(RankContext& context);
void LocalRankContextExample() {
#include "examples/dist/rank_context.h.2"
}

void ParameterLayoutExample(const std::vector<ParamSpec>& specs, int world_size) {
#include "examples/dist/parameter_layout.h"
}

void RankContextExample(double loss) {
#include "examples/dist/rank_context.h"
}

void EndWorld(const CommFailure& failure);
void WatchdogExample(RankContext& context, const std::shared_ptr<DeviceWatch>& watch) {
#include "examples/dist/watchdog.h"
}

void Compute();
void WorkExample(Communicator& comm, float* grad, int64_t count) {
#include "examples/dist/communicator.h.2"
}

}  // namespace halflife::dist
