// One run of one collective with reproducible data, so that groups can be compared bit for bit, and
// its meaning written down naively.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist/request.h"

namespace halflife::dist::test {

struct CollectiveCase {
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  // Of a rank's contribution; send-receive and all-gather-v make it uneven themselves.
  int64_t count = 0;
};
std::string ToString(const CollectiveCase& one);

// Every operation in every dtype, counts 0, 1, 3, 64 and 1003, reductions sum, max and min.
std::vector<CollectiveCase> AllCases();

// What `rank` contributes: magnitudes over many binades, so that the order of a sum shows in its
// bits.
std::vector<uint8_t> Payload(DType dtype, int64_t count, int rank);

// Runs it on a communicator: this rank's output bytes. `index` (equal on all ranks) is the tag and
// varies root and aliasing.
std::vector<uint8_t> Run(const CollectiveCase& one, Communicator& comm, int index);
// The same by definition, element by element.
std::vector<uint8_t> Expected(const CollectiveCase& one, int rank, int size, int index);

}  // namespace halflife::dist::test
