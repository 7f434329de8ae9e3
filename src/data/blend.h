// The order of the rows of a blend: a mixture of datasets with weights, in closed form.
//
// Weights become counts of a cycle of kBlendCycle samples. The sources of a cycle's samples are
// spread evenly: among any consecutive n samples of a segment, a source with share p has p n + d
// samples, |d| < 10. Each source has windows, seed and epochs of its own: its n-th sample is window
// PermuteIndex(n mod W, W, seed, n / W), for its W windows.
//
// A segment is a range of samples with the same weights. Changing the weights begins a segment, in
// which every source continues where it was. Nothing is repeated or left out.
//
//   Blend blend({{.name = "web", .num_windows = 1000, .seed = BlendSeed(1, "web")},
//                {.name = "code", .num_windows = 50, .seed = BlendSeed(1, "code")}}, /*seed=*/1);
//   const double weights[] = {0.7, 0.3};
//   blend.Begin(/*first_sample=*/0, BlendCounts(weights));
//   const Blend::Row row = blend.At(/*sample=*/12345);  // row.source, row.window
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace halflife::data {

constexpr int kBlendCycle = 4096;  // C
// Increased when the definition of the order changes. Trajectories of blends contain it.
constexpr int kBlendVersion = 1;

struct BlendSource {
  std::string name;
  int64_t num_windows = 0;  // W; 0 for a source that was removed and is never drawn again.
  uint64_t seed = 0;
};
// Returns the seed of a source, from the run's seed.
uint64_t BlendSeed(uint64_t run_seed, const std::string& name);

// Returns the samples of each source in a cycle, in proportion to the weights: largest remainder,
// but at least 1 for a weight above 0. At least one weight must be above 0. At most
// kMaxBlendSources weights.
constexpr size_t kMaxBlendSources = 256;
std::vector<uint32_t> BlendCounts(std::span<const double> weights);

struct BlendSegment {
  uint64_t first_sample = 0;
  std::vector<uint32_t> counts;  // Rows of each source in a cycle; the sum is kBlendCycle.
  std::vector<uint64_t> base;    // Samples of each source before first_sample.
};

class Blend {
 public:
  Blend(std::vector<BlendSource> sources, uint64_t seed);

  // Begins a segment with these counts, unless the last segment has the same. first_sample must not
  // be before that of the last segment; if it is equal, the counts of that segment are replaced.
  void Begin(uint64_t first_sample, std::vector<uint32_t> counts);
  // Adds a segment that Begin made in an earlier program. Sources without entries, which were added
  // later, have zeros.
  void Restore(BlendSegment segment);

  struct Row {
    int source = 0;
    uint64_t number = 0;  // Samples of the source before this one.
    int64_t window = 0;
  };
  Row At(uint64_t sample) const;
  // Returns the number of samples of each source among the first `num_samples`.
  std::vector<uint64_t> Drawn(uint64_t num_samples) const;

  const std::vector<BlendSource>& sources() const { return sources_; }
  const std::vector<BlendSegment>& segments() const { return segments_; }
  int64_t num_windows() const;  // The sum over all sources.

 private:
  // The sources of a cycle's samples before those of each block are permuted, and how many samples
  // of each source precede each block: [blocks + 1, sources].
  struct Cycle {
    std::vector<uint16_t> order;
    std::vector<uint16_t> before;
  };
  static Cycle MakeCycle(const std::vector<uint32_t>& counts);

  struct Place {
    const BlendSegment& segment;
    const Cycle& cycle;
    uint64_t cycle_number = 0;
    int block = 0, in_block = 0;
  };
  Place Find(uint64_t sample) const;
  // Returns the source of the sample at `in_block` of the place's block.
  int SourceIn(const Place& place, int in_block) const;

  std::vector<BlendSource> sources_;
  uint64_t seed_;
  std::vector<BlendSegment> segments_;
  std::vector<Cycle> cycles_;  // One for each segment.
};

}  // namespace halflife::data
