// The examples of src/dist's headers. A function's parameters are what its example takes for
// granted.
#include "dist/communicator.h"
#include "dist/gradient_reducer.h"
#include "dist/local_communicator.h"
#include "dist/mpi_engine.h"
#include "dist/nccl_communicator.h"
#include "dist/parameter_layout.h"
#include "dist/rank_context.h"
#include "dist/work.h"

namespace halflife::dist {

void CommunicatorExample(Communicator& comm, double* norms) {
#include "examples/dist/communicator.h"
}

void GradientReducerExample(const ParameterLayout& layout, Communicator& comm, TensorRef grads,
                            int param) {
#include "examples/dist/gradient_reducer.h"
}

void LocalCommunicatorExample() {
#include "examples/dist/local_communicator.h"
}

void MpiEngineExample(const ExchangePlan& plan) {
#include "examples/dist/mpi_engine.h"
}

void NcclCommunicatorExample(RankContext& context, TensorRef grads, cudaStream_t compute_stream) {
#include "examples/dist/nccl_communicator.h"
}

void ParameterLayoutExample(const std::vector<ParamSpec>& specs, int world_size) {
#include "examples/dist/parameter_layout.h"
}

void RankContextExample(double loss) {
#include "examples/dist/rank_context.h"
}

void Compute();
void WorkExample(Communicator& comm, float* grad, int64_t count) {
#include "examples/dist/work.h"
}

}  // namespace halflife::dist
