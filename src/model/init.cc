#include "model/init.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/philox.h"

namespace halflife::model {
namespace {

// Returns the four standard normals of one draw.
void Normals(const RandomCounter& draw, double* out) {
  const NormalPair low = ToNormal(draw.x[0], draw.x[1]), high = ToNormal(draw.x[2], draw.x[3]);
  out[0] = low.a, out[1] = low.b, out[2] = high.a, out[3] = high.b;
}

// Returns the element's first normal within [-cut, cut]. Attempt 0 is the value of the untruncated
// initialiser.
double DrawWithin(RandomKey key, int64_t element, double cut) {
  for (uint32_t attempt = 0;; ++attempt) {
    double normals[4];
    Normals(Draw(key, static_cast<uint64_t>(element / 4), attempt, 0), normals);
    if (std::abs(normals[element % 4]) <= cut) return normals[element % 4];
  }
}

}  // namespace

Init Init::UniformOfFanIn(int64_t fan_in) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return Uniform(-bound, bound);
}

void Init::Fill(const std::string& name, const std::vector<int64_t>& shape, uint64_t seed,
                float* out) const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  if (kind_ == Kind::kConstant) {
    std::fill(out, out + count, static_cast<float>(factor_ * low_));
    return;
  }
  const int64_t channels = shape.empty() ? 1 : shape.back();
  HL_CHECK(kind_ != Kind::kTruncatedNormal || cut_ >= 0.5, "a normal truncated at ", cut_,
           " standard deviations takes too many draws. Truncate it at 0.5 or more.");
  const RandomKey key =
      MakeRandomKey(seed, RandomPurpose::kInit, NameHash32(name.data(), name.size()));
  for (int64_t first = 0; first < count; first += 4) {  // One draw serves four elements.
    const RandomCounter draw = Draw(key, static_cast<uint64_t>(first / 4), 0, 0);
    double normals[4] = {};
    if (kind_ == Kind::kNormal) Normals(draw, normals);
    for (int64_t i = first; i < std::min(count, first + 4); ++i) {
      const double uniform = ToUniform(draw.x[i - first]);
      double value = low_;
      switch (kind_) {
        case Kind::kConstant:
          break;
        case Kind::kNormal:
          value = high_ * normals[i - first];
          break;
        case Kind::kTruncatedNormal:
          value = high_ * DrawWithin(key, i, cut_);
          break;
        case Kind::kUniform:
          value = low_ + (high_ - low_) * uniform;
          break;
        case Kind::kLogUniform:
          value = low_ * std::pow(high_ / low_, uniform);
          break;
        case Kind::kRange:
          if (channels > 1)
            value += (high_ - low_) * static_cast<double>(i % channels) /
                     static_cast<double>(channels - 1);
          break;
        case Kind::kFormula:
          value = formula_(i, uniform);
          break;
      }
      out[i] = static_cast<float>(factor_ * value);
    }
  }
}

}  // namespace halflife::model
