// The oracle: every window by itself, token by token in fp64, with the largest log weight taken
// out; and every gradient by its formula. Slow on purpose; nothing but tests and benches may call
// it.
#pragma once

#include "kernels/focus_pool/focus_pool_args.h"

namespace halflife::kernels {

// Takes and gives what the CPU kernels do, for all runs at once.
void FocusPoolReference(const FocusPoolShape<double>& shape,
                        const FocusPoolResults<double>& results);
void FocusPoolReferenceBackward(const FocusPoolShape<double>& shape,
                                const FocusPoolResults<double>& results,
                                const FocusPoolGrads<double>& grads);

}  // namespace halflife::kernels
