// Records which operations one rank of a job would issue and wait for, without running the job. The
// rank's code runs on groups that move nothing and record every operation. A plan thus uses the
// same code for its collectives as a real run, for any number of ranks.
//
//   Rehearsal rehearsal;
//   const auto world = rehearsal.MakeGroup(/*rank=*/0, /*size=*/1024, "world");
//   rehearsal.Compute(0);                                         // a piece of the caller's work
//   GradientReducer reducer(layout, *world, {.count = layout.num_elements()});
//   Reduce(reducer);
//   for (const RehearsedOperation& operation : rehearsal.operations()) Print(operation.what);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/request.h"

namespace halflife::dist {

struct RehearsedOperation {
  std::string group = {};
  int group_size = 1;
  OpKind kind = OpKind::kBarrier;
  std::string what = {};
  int64_t bytes = 0;  // the larger of input and output, as in flight records

  bool operator==(const RehearsedOperation&) const = default;
};

// One event of the program; events are in program order.
struct RehearsedEvent {
  enum class Kind : uint8_t { kCompute, kIssue, kWait };
  Kind kind = Kind::kCompute;
  int64_t value = 0;  // kCompute: the caller's number; otherwise an index into operations()
};

class Rehearsal {
 public:
  // Returns a rank's membership of a group; borrows the rehearsal. Its operations fill their
  // outputs with zeros if there is memory; a TensorRef without data is allowed. Groups of one rank
  // are also recorded, but have no other ranks to wait for.
  std::unique_ptr<Communicator> MakeGroup(int rank, int size, std::string name);

  void Compute(int64_t piece) { events_.push_back({RehearsedEvent::Kind::kCompute, piece}); }
  int64_t Issue(RehearsedOperation operation);  // returns its index
  void Wait(int64_t operation) { events_.push_back({RehearsedEvent::Kind::kWait, operation}); }

  const std::vector<RehearsedOperation>& operations() const { return operations_; }
  const std::vector<RehearsedEvent>& events() const { return events_; }

 private:
  std::vector<RehearsedOperation> operations_;
  std::vector<RehearsedEvent> events_;
};

}  // namespace halflife::dist
