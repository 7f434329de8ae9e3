// The position of every parameter in the flat arena, and the division of the arena into buckets and
// rank slices. It is index arithmetic without LibTorch, and it is the same on every rank and in
// every tool that reads checkpoints.
//
// One index space of elements, [0, num_elements), is used for the main weights, the gradients and
// the optimizer's state arrays, all in fp32. Region kCompute comes first; its weights are stored a
// second time in the compute dtype if that is not fp32. Region kFp32 follows, with the parameters
// that compute in fp32 (norms, decays). In each region, tensors are in reverse registration order,
// so that buckets fill from the front during backward. Tensor starts align to 64 elements. Padding
// is zero and stays zero.
//
//   const ParameterLayout layout(specs, {.bucket_bytes = 64 << 20, .num_slices = world_size});
//   for (const Bucket& bucket : layout.buckets()) ...
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/matrix_part.h"

namespace halflife::dist {

enum class Region : uint8_t { kCompute, kFp32 };

struct ParamSpec {
  std::string name;            // name in a checkpoint, e.g. "layers.0.attn.q_proj.weight"
  std::vector<int64_t> shape;  // outermost first
  Region region = Region::kCompute;
  bool weight_decay = false;  // whether it decays; the model part that owns it decides
  bool float8 = false;        // whether train.precision "fp8" may multiply it in FP8; likewise
  // The matrices of which a weight [out, in] of a hidden layer consists: all of its rows, in order.
  // Empty for all other parameters: vectors, convolutions, embeddings, heads.
  std::vector<MatrixPart> parts = {};
  int readers = 1;                   // number of layers that read it
  std::vector<std::string> aliases;  // other names of the same tensor (tied head)

  int64_t count() const;
};

struct LayoutConfig {
  // In bytes of fp32 gradients. The first bucket is small, so that the first reduction starts
  // early.
  int64_t first_bucket_bytes = 8 << 20;
  int64_t bucket_bytes = 64 << 20;
  int num_slices = 1;  // W: every bucket is padded so that it splits into W equal slices
  // The unit of each parameter: a number from 0, in the order of registration, or -1 for parameters
  // of no unit. A bucket of region kCompute holds parameters of one unit, and those of no unit are
  // last in the region. Empty: there are no units.
  std::vector<int> units = {};
  // By parameter: whether it is not trained. A bucket is frozen as a whole or not at all, and those
  // of trained parameters come first in their unit or region. Empty: all are trained.
  std::vector<bool> frozen = {};
};

// Returns the size of a bucket that suits the number of ranks: a reduction takes a latency per
// rank, which 4 MiB per rank hide. At least 64 MiB, at most an eighth of the gradients, so that the
// reductions overlap with backward.
int64_t AutoBucketBytes(int num_ranks, int64_t gradient_bytes);

// How one array holds the elements of the arena: of each bucket before element `end` (a bucket's
// end, or 0) only part `part` of `parts`, and everything after it. With `trained`, it has no
// elements of frozen buckets, and `end` is 0 or the end of the arena.
struct Division {
  int64_t end = 0;
  int parts = 1, part = 0;
  bool trained = false;

  bool divides() const { return end > 0; }
};

struct Bucket {
  int64_t begin = 0, end = 0;  // elements of the arena; (end - begin) % num_slices == 0
  Region region = Region::kCompute;
  std::vector<int> params;  // registration indices, in arena order
  bool frozen = false;
  int64_t trained_begin = 0;  // its position in a whole array without frozen buckets
};

// A contiguous element range of one parameter and its position in the arena.
struct Fragment {
  int param = 0;
  int64_t begin = 0, end = 0;  // elements of the flattened parameter
  int64_t arena_begin = 0;
  int64_t slice_begin = 0;  // position in the concatenation of one slice of all buckets
};

class ParameterLayout {
 public:
  ParameterLayout(std::vector<ParamSpec> specs, const LayoutConfig& config);

  const std::vector<ParamSpec>& specs() const { return specs_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int64_t num_elements() const { return num_elements_; }  // with padding
  int64_t num_compute_elements() const { return num_compute_elements_; }
  int64_t num_trained_elements() const { return num_trained_elements_; }  // of trained buckets
  bool frozen(int param) const { return !frozen_.empty() && frozen_[param]; }
  bool has_frozen() const { return num_trained_elements_ < num_elements_; }
  // A partly sliced array holds one rank's slices of the buckets before element `sliced_end` of the
  // arena (a bucket's end, or 0) and all elements after it. num_held is its number of elements.
  // PlaceOf is the index of a fragment's first element in it.
  int64_t num_held(int64_t sliced_end) const {
    return num_elements_ - sliced_end + sliced_end / num_slices_;
  }
  int64_t PlaceOf(const Fragment& fragment, int64_t sliced_end) const {
    return fragment.arena_begin < sliced_end
               ? fragment.slice_begin
               : fragment.arena_begin - sliced_end + sliced_end / num_slices_;
  }
  // The position of a slice of a bucket in the whole arena and in the array of that slice.
  struct SliceRange {
    int64_t arena_begin = 0, slice_begin = 0, count = 0;
  };
  SliceRange SliceOf(const Bucket& bucket, int slice) const {
    return SliceOf(bucket, slice, num_slices_);
  }
  // The same for a division into `parts` equal parts; `parts` divides num_slices().
  SliceRange SliceOf(const Bucket& bucket, int part, int parts) const;
  // The number of elements of an array with this division, and the index of `element` in it.
  int64_t num_held(const Division& division) const {
    if (division.trained) return num_trained_elements_ / (division.divides() ? division.parts : 1);
    return num_elements_ - division.end + division.end / division.parts;
  }
  int64_t PlaceOf(int64_t element, const Division& division) const;
  int64_t offset(int param) const { return offsets_[param]; }
  int num_slices() const { return num_slices_; }
  int64_t num_parameters() const;  // without padding

  // Returns slice `slice` of `num_slices` of every bucket, as parameter ranges in arena order,
  // without padding.
  std::vector<Fragment> SliceFragments(int slice) const;
  // Returns the whole arena as fragments, one per parameter, in arena order.
  std::vector<Fragment> AllFragments() const;

 private:
  const Bucket& BucketOf(int64_t element) const;

  std::vector<ParamSpec> specs_;
  std::vector<bool> frozen_;      // LayoutConfig::frozen
  std::vector<int64_t> offsets_;  // by registration index
  std::vector<Bucket> buckets_;
  int64_t num_elements_ = 0;
  int64_t num_compute_elements_ = 0, num_trained_elements_ = 0;
  int num_slices_ = 1;
};

// Returns the index of each parameter's bucket, by parameter.
std::vector<int> BucketsOfParameters(const ParameterLayout& layout);

// Counts which gradients of a backward pass are ready and which buckets they complete. Every
// reduction of buckets uses it.
//
//   BucketProgress progress(layout);
//   progress.Begin();
//   progress.MarkReady(param);
//   if (progress.complete(bucket)) Launch(bucket);
//   progress.RequireAll();
class BucketProgress {
 public:
  explicit BucketProgress(const ParameterLayout& layout);  // borrowed

  void Begin();
  // Throws Error kInternal, naming the parameter, if its gradient was already marked as ready, or
  // if it is frozen.
  void MarkReady(int param);
  bool complete(int bucket) const { return remaining_[bucket] == 0; }  // frozen ones always are
  // Throws Error kInternal, naming all trained parameters without a gradient.
  void RequireAll() const;
  int bucket_of(int param) const { return bucket_of_[param]; }

 private:
  const ParameterLayout& layout_;
  std::vector<int> bucket_of_;  // by parameter
  std::vector<int> remaining_;  // by bucket: parameters whose gradient is missing
  std::vector<bool> ready_;     // by parameter
};

}  // namespace halflife::dist
