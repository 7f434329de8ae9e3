// What one rank of a job would issue and wait for, without the job: its code runs against groups
// that move nothing and write down every operation. A plan so has its collectives from the code
// that a run has them from, for ranks that are not there.
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
  int64_t bytes = 0;  // given or received, whichever is more: as flight records count

  bool operator==(const RehearsedOperation&) const = default;
};

// In the order of the program.
struct RehearsedEvent {
  enum class Kind : uint8_t { kCompute, kIssue, kWait };
  Kind kind = Kind::kCompute;
  int64_t value = 0;  // of kCompute the caller's number, else an index into operations()
};

class Rehearsal {
 public:
  // A rank's membership of a group; borrows the rehearsal. Its operations leave zeros behind, where
  // there is memory for them: a TensorRef without data is fine. Groups of one are written down,
  // too; they have no others to wait for.
  std::unique_ptr<Communicator> MakeGroup(int rank, int size, std::string name);

  void Compute(int64_t piece) { events_.push_back({RehearsedEvent::Kind::kCompute, piece}); }
  int64_t Issue(RehearsedOperation operation);  // -> its index
  void Wait(int64_t operation) { events_.push_back({RehearsedEvent::Kind::kWait, operation}); }

  const std::vector<RehearsedOperation>& operations() const { return operations_; }
  const std::vector<RehearsedEvent>& events() const { return events_; }

 private:
  std::vector<RehearsedOperation> operations_;
  std::vector<RehearsedEvent> events_;
};

}  // namespace halflife::dist
