// A collective in flight. Move-only. It borrows the buffers: the caller keeps them alive and in
// place until the Work is done.
//
//   Work work = comm.AllReduce(Ref(grad, count), ReduceOp::kSum, {"grad_bucket", 7}, nullptr);
//   Compute();  // while the ranks exchange
//   work.WaitHost();
#pragma once

#include <memory>

#include "core/tensor_ref.h"

namespace halflife::dist {

// The interface that communicators implement for each operation. The destructor waits for an
// unfinished operation and never throws.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual bool Done() = 0;
  virtual void WaitHost() = 0;                     // throws CommError
  virtual void WaitOn(cudaStream_t consumer) = 0;  // CPU: the same as WaitHost
};

class Work {
 public:
  Work() = default;  // already done
  explicit Work(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  Work(Work&&) = default;
  Work& operator=(Work&&) = default;

  bool Done() { return !operation_ || operation_->Done(); }
  void WaitHost() {
    if (operation_) operation_->WaitHost();
  }
  void WaitOn(cudaStream_t consumer) {
    if (operation_) operation_->WaitOn(consumer);
  }

 private:
  std::shared_ptr<Operation> operation_;
};

}  // namespace halflife::dist
