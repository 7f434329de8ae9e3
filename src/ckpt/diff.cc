#include "ckpt/diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "core/concat.h"
#include "core/error.h"

namespace halflife::ckpt {
namespace {

constexpr int64_t kChunk = kBlockBytes / sizeof(float);

// Maps fp32 bit patterns to integers: neighbouring values differ by 1, and -0 is 0.
int64_t Ordinal(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  return bits >= 0 ? bits : std::numeric_limits<int32_t>::min() - static_cast<int64_t>(bits);
}

size_t UlpBin(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b) ? 0 : 5;
  const auto distance = static_cast<uint64_t>(std::abs(Ordinal(a) - Ordinal(b)));
  return distance == 0    ? 0
         : distance == 1  ? 1
         : distance < 4   ? 2
         : distance < 16  ? 3
         : distance < 256 ? 4
                          : 5;
}

class TensorComparison {
 public:
  TensorComparison(const std::string& array, const std::string& name) {
    result_.array = array, result_.name = name;
  }

  void Add(const std::vector<float>& a, const std::vector<float>& b, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) && result_.equal()) {
        result_.first_different = result_.count + i;
        result_.value_a = a[i];
        result_.value_b = b[i];
      }
      const double difference = static_cast<double>(a[i]) - b[i];
      result_.max_abs = std::fmax(result_.max_abs, std::abs(difference));
      squares_ += static_cast<double>(a[i]) * a[i];
      squared_difference_ += difference * difference;
      ++result_.ulps[UlpBin(a[i], b[i])];
    }
    result_.count += count;
  }

  TensorDifference Finish() {
    result_.relative_l2 = squared_difference_ == 0 ? 0 : std::sqrt(squared_difference_ / squares_);
    return result_;
  }

 private:
  TensorDifference result_;
  double squares_ = 0, squared_difference_ = 0;
};

TensorDifference CompareTensor(const StepReader& a, const StepReader& b, const std::string& array,
                               const TensorInfo& tensor, bool stop_at_first) {
  TensorComparison comparison(array, tensor.name);
  const int64_t chunk = std::min(kChunk, tensor.count());
  std::vector<float> values_a(chunk), values_b(chunk);
  for (int64_t begin = 0; begin < tensor.count(); begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, tensor.count());
    a.ReadRange(array, tensor.name, begin, end, values_a.data());
    b.ReadRange(array, tensor.name, begin, end, values_b.data());
    comparison.Add(values_a, values_b, end - begin);
    if (stop_at_first && !comparison.Finish().equal()) break;
  }
  return comparison.Finish();
}

bool Has(const TensorInfo& tensor, const std::string& array) {
  return std::ranges::count(tensor.arrays, array) > 0;
}

std::vector<std::string> ArraysToCompare(const StepReader& a, const StepReader& b,
                                         const std::vector<std::string>& chosen) {
  std::vector<std::string> known = a.manifest().array_names();
  for (const std::string& array : b.manifest().array_names())
    if (std::ranges::count(known, array) == 0) known.push_back(array);
  for (const std::string& array : chosen)
    HL_CHECK_AS(ExitCode::kUsage, std::ranges::count(known, array) > 0,
                "neither step has an array '", array, "'. Use ", Join(known, ", "), ".");
  return chosen.empty() ? known : chosen;
}

}  // namespace

bool StepDifference::equal() const {
  return only_in_a.empty() && only_in_b.empty() && reshaped.empty() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorDifference& tensor) { return tensor.equal(); });
}

StepDifference DiffSteps(const StepReader& a, const StepReader& b, const DiffOptions& options) {
  const std::vector<std::string> arrays = ArraysToCompare(a, b, options.arrays);
  StepDifference difference;
  std::map<std::string, const TensorInfo*> in_b;
  for (const TensorInfo& tensor : b.tensors()) in_b[tensor.name] = &tensor;
  for (const TensorInfo& tensor : a.tensors()) {
    const auto found = in_b.find(tensor.name);
    const TensorInfo* const other = found == in_b.end() ? nullptr : found->second;
    if (other != nullptr) in_b.erase(found);
    if (other != nullptr && other->shape != tensor.shape) {
      difference.reshaped.push_back(
          Concat(tensor.name, ": ", ShapeText(tensor.shape), " against ", ShapeText(other->shape)));
      continue;
    }
    for (const std::string& array : arrays) {
      const bool here = Has(tensor, array), there = other != nullptr && Has(*other, array);
      const std::string label = Concat(array, "/", tensor.name);
      if (here && !there) difference.only_in_a.push_back(label);
      if (!here && there) difference.only_in_b.push_back(label);
      if (!here || !there) continue;
      difference.tensors.push_back(CompareTensor(a, b, array, tensor, options.stop_at_first));
      if (options.stop_at_first && !difference.tensors.back().equal()) return difference;
    }
  }
  for (const auto& [name, tensor] : in_b) {
    for (const std::string& array : arrays) {
      if (Has(*tensor, array)) difference.only_in_b.push_back(Concat(array, "/", name));
    }
  }
  return difference;
}

}  // namespace halflife::ckpt
