#include "train/step/step_scalars.h"

#include "core/concat.h"

namespace halflife::train {

void StepScalars::Reduce(dist::Communicator& comm) {
  const StepScalars own = *this;
  comm.AllReduce(Ref(values_.data(), static_cast<int64_t>(values_.size())), dist::ReduceOp::kSum,
                 {"step_scalars", 0}, nullptr)
      .WaitHost();
  for (const Scalar identity : {Scalar::kStep, Scalar::kConfigHash}) {
    if ((*this)[identity] != comm.size() * own[identity]) {
      throw dist::CommError(
          {dist::CommFailure::Kind::kDesync,
           Concat("ranks have come apart: ", identity == Scalar::kStep ? "step" : "config hash",
                  " is ", own[identity], " on rank ", comm.rank(), ", the mean is ",
                  (*this)[identity] / comm.size())});
    }
  }
  (*this)[Scalar::kGradSquares] /= comm.size();
}

}  // namespace halflife::train
