// What a model adds to its embeddings so that they tell where a token stands. Mixers that rotate or
// decay need none. Adding one is a file here, a line in positions.inc and a message in the schema.
//
//   const auto table = MakePositionTable(config.positions, {.prefix = "positions.", ...});
//   x = (*table)(x, slice.positions);
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "model/part_context.h"

namespace halflife::model {

class PositionTable {
 public:
  virtual ~PositionTable() = default;
  // x [..., D], positions [...] int64, counted in the token's document -> x with positions.
  virtual at::Tensor operator()(const at::Tensor& x, const at::Tensor& positions) const = 0;
  // Positions below it are known; 0: all are.
  virtual int64_t max_positions() const { return 0; }
};

extern const PartKind kPositionTables;
using PositionTableConfig = ConfigOf<kPositionTables>;

// Errors as MakePart's.
std::unique_ptr<PositionTable> MakePositionTable(const PositionTableConfig& config,
                                                 const PartContext& context);

}  // namespace halflife::model
