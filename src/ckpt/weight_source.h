// Access to weights by name, wherever they are stored: a step of this program or a folder of
// another library. Inference, export and warm starts read from it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/reader.h"
#include "core/error.h"

namespace halflife::ckpt {

struct WeightInfo {
  std::string name;            // as the model declares it
  std::vector<int64_t> shape;  // outermost first
  int64_t count() const { return CountElements(shape); }
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual std::string where() const = 0;  // for messages
  virtual const std::vector<WeightInfo>& weights() const = 0;
  // Reads the elements [begin, end) of a flattened weight. Errors name the weight and the location.
  // Thread-safe.
  virtual void ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const = 0;
};

// Returns the array that `--weights main` or `--weights ema` names. Throws Error kUsage if the step
// does not have it.
inline std::string WeightsArray(const StepReader& step, const std::string& choice) {
  if (choice != "ema") return kMainArray;
  HL_CHECK_AS(ExitCode::kUsage, step.manifest().FindArray(kAverageArray) != nullptr,
              step.path().string(),
              " has no average of the weights. Use --weights main, or train with "
              "optimizer.ema_decay.");
  return kAverageArray;
}

// The main weights of a step, or another array that has an element for each weight.
class StepWeights : public WeightSource {
 public:
  explicit StepWeights(StepReader reader, std::string array = kMainArray)
      : reader_(std::move(reader)), array_(std::move(array)) {
    for (const TensorInfo& tensor : reader_.tensors())
      weights_.push_back({tensor.name, tensor.shape});
  }
  std::string where() const override { return reader_.path().string(); }
  const std::vector<WeightInfo>& weights() const override { return weights_; }
  void ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const override {
    reader_.ReadRange(array_, name, begin, end, out);
  }

 private:
  StepReader reader_;
  std::string array_;
  std::vector<WeightInfo> weights_;
};

}  // namespace halflife::ckpt
