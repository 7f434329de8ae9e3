// Consecutive rows of a matrix parameter that form a matrix of their own, such as the queries of a
// projection that computes queries, keys and values. The layer that owns the parameter declares
// them. Optimizers that update whole matrices (Muon) update each part by itself.
#pragma once

#include <cstdint>

namespace halflife {

struct MatrixPart {
  int64_t rows = 0;
  int64_t heads = 1;  // blocks of rows / heads rows, one per attention head

  bool operator==(const MatrixPart&) const = default;
};

}  // namespace halflife
