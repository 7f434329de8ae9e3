// Runs ranks as threads of one process, for tests and for `train --local-ranks`. Sums are
// bit-identical to MPI's. On demand it delays, reorders and breaks operations. CPU tensors only.
//
//   LocalWorld::Run(4, [&](Communicator& comm) {
//     float x = 1;
//     comm.AllReduce(Ref(&x, 1), ReduceOp::kSum, {"example", 0}, nullptr).WaitHost();   // x == 4
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace halflife::dist {

// Adds random delays before a rank issues an operation and before an operation completes, and makes
// one rank slow. The data of an operation moves only when it completes, so code that reads its
// output before Wait reads wrong values.
struct LocalSchedule {
  uint64_t seed = 0;
  double max_delay_s = 0.0005;
  double slow_rank_factor = 4;
};

// A fault that occurs when `rank` issues its `nth` operation (from 1) whose tag is `what`.
struct LocalFault {
  enum class Kind {
    kThrow,       // Error kInternal
    kHang,        // sleeps until the world aborts
    kDisappear,   // the rank ends without an error, like a killed process
    kNan,         // one NaN in the middle of the input
    kBitFlip,     // the lowest bit of the middle byte of the input
    kWrongCount,  // one element more than on the peers
    kDuplicate    // the operation is issued twice
  };
  Kind kind = Kind::kThrow;
  int rank = 0;
  std::string what;
  int nth = 1;
};

struct LocalOptions {
  double timeout_s = 30;  // deadline of one operation, counted from its issue
  std::optional<LocalSchedule> schedule = {};
  std::vector<LocalFault> faults = {};
};

class LocalWorld {
 public:
  // Runs `rank_main` on `size` threads and joins them. The first exception that is a cause, and not
  // a consequence (CommError kAborted), ends all ranks and is rethrown here. Throws kDesync if
  // operations remain that some ranks never issued.
  static void Run(int size, const std::function<void(Communicator&)>& rank_main,
                  const LocalOptions& options = {});
};

}  // namespace halflife::dist
