// A run folder, arenas whose contents do not depend on the world size, and saves and loads over
// LocalWorld.
//
//   const std::vector<dist::ParamSpec> specs = SmallSpecs();
//   SaveStep(run, {.world = 2, .step = 100}, specs);
//   // Checks every element of every rank's arena.
//   EXPECT_EQ(LoadStep(run, 3, specs)->state.step, 100u);
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/store.h"
#include "support/temp_dir.h"

namespace halflife::ckpt::test {

// Main weights and two state arrays, "optim/m" and "optim/v". Values are random bits of (seed,
// array, parameter, element), without NaN.
class TestArena {
 public:
  TestArena(const std::vector<dist::ParamSpec>& specs, int num_slices);
  void Fill(uint64_t seed);
  void FillWithGarbage();
  // Describes the first element that differs from Fill(seed). Empty: all agree. Padding must be
  // zero.
  std::string DifferenceFrom(uint64_t seed, bool with_states = true) const;
  // Does the same for the elements of one slice.
  std::string SliceDifferenceFrom(uint64_t seed, int slice) const;
  ArenaView view();
  // Main weights only.
  ArenaView weights() { return {&layout_, {view().arrays[0]}}; }

 private:
  std::vector<float> Expected(uint64_t seed, size_t array) const;

  dist::ParameterLayout layout_;
  std::array<std::vector<float>, 3> arrays_;
};

// Returns matrices, norms, a scalar, an empty tensor and a tied one, with about 5,000 elements.
std::vector<dist::ParamSpec> SmallSpecs();
// Returns one tensor of 9.4 million elements (36 MiB per array) between two small ones.
std::vector<dist::ParamSpec> LargeSpecs();
std::vector<dist::ParamSpec> RandomSpecs(uint64_t seed);

StepState MakeState(uint64_t step);
Expectation MatchingExpectation();

// Returns a manifest of schema 3, with two arrays, for files of `num_slices` ranks that were never
// written.
Manifest DerivedManifest(const std::vector<dist::ParamSpec>& specs, int num_slices);

struct SaveOptions {
  int world = 1;
  uint64_t step = 100;
  StoreConfig config = {};
};
// Saves an arena with the values Fill(step).
SaveReport SaveStep(const std::filesystem::path& run, const SaveOptions& options,
                    const std::vector<dist::ParamSpec>& specs);

// Loads a step and compares every rank's whole arena with Fill(loaded step).
std::optional<LoadReport> LoadStep(const std::filesystem::path& run, int world,
                                   const std::vector<dist::ParamSpec>& specs,
                                   const ResumeRequest& request = {},
                                   const Expectation& expectation = MatchingExpectation());

// Returns the sorted names in RUN/ckpt. Entries of `.trash` are ".trash/<name without the random
// suffix>".
std::vector<std::string> ListCkpt(const std::filesystem::path& run);

}  // namespace halflife::ckpt::test
