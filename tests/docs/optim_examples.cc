// The examples of src/optim's headers. A function's parameters are what its example takes for
// granted.
#include <memory>
#include <string>
#include <vector>

#include "optim/optimizer_choice.h"

namespace halflife::optim {

void OptimizerExample(const OptimizerChoice& choice, const AdamWConfig& adamw_config,
                      const std::vector<Range>& ranges, float* w, const float* g, float* m,
                      float* v, double lr, double clip, uint64_t t) {
#include "examples/optim/optimizer.h"
}

void OptimizerChoiceExample(const AdamWConfig& adamw_config) {
#include "examples/optim/optimizer_choice.h"
}

}  // namespace halflife::optim
