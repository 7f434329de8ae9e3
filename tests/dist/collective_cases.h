// Runs single collectives with reproducible data, so that communicators can be compared bit for
// bit, and computes the expected result by definition.
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
  // Elements of a rank's contribution. send-receive and all-gather-v vary it by rank.
  int64_t count = 0;
};
std::string ToString(const CollectiveCase& one);

// Returns every operation in every dtype, with counts 0, 1, 3, 64 and 1003, and reductions sum, max
// and min.
std::vector<CollectiveCase> AllCases();

// Returns the contribution of `rank`. Magnitudes span many binades, so that the order of a sum
// changes its bits.
std::vector<uint8_t> Payload(DType dtype, int64_t count, int rank);

// Where the buffers of Run are: in host memory, which is also the memory of a fake GPU.
class Memory {
 public:
  virtual ~Memory() = default;
  // Returns the place of these bytes on the device, with their values.
  virtual void* Place(std::vector<uint8_t>& bytes) { return bytes.data(); }
  // Copies all places back to their bytes.
  virtual void Return() {}
};

// Runs the case on a communicator and returns this rank's output bytes. `index` is equal on all
// ranks. It is the tag, and selects the root and whether buffers alias. `device` owns the buffers.
std::vector<uint8_t> Run(const CollectiveCase& one, Communicator& comm, int index,
                         Device device = {});
std::vector<uint8_t> Run(const CollectiveCase& one, Communicator& comm, int index, Device device,
                         Memory& memory);
// Returns the expected output, computed by definition, element by element.
std::vector<uint8_t> Expected(const CollectiveCase& one, int rank, int size, int index);

}  // namespace halflife::dist::test
