// The reference: each window separately, token by token in fp64, with the largest log weight
// factored out; and every gradient by its formula. Slow on purpose; only tests and benchmarks may
// call it.
#pragma once

#include "kernels/focus_pool/focus_pool_args.h"

namespace halflife::kernels {

// Computes all runs. Inputs and outputs are those of the CPU kernels.
void FocusPoolReference(const FocusPoolShape<double>& shape,
                        const FocusPoolResults<double>& results);
void FocusPoolReferenceBackward(const FocusPoolShape<double>& shape,
                                const FocusPoolResults<double>& results,
                                const FocusPoolGrads<double>& grads);

}  // namespace halflife::kernels
