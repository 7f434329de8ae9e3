// The memory of gathered weights under ZeRO stage 3: slots of fixed size, and one storage for each
// unit (dist/unit_gather.h) that points at the slot in which the unit is. The model's parameters
// are views of the storages of their units, so the tensors that autograd saves for backward follow
// a unit to another slot. A storage of a unit that is in no slot has no memory: reading such a
// parameter is an error.
//
// With the environment variable HALFLIFE_POISON_UNITS=1, a released slot is filled with NaN. Tests
// set it to find readers that kept a pointer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <vector>

#include "core/tensor_ref.h"
#include "dist/parameter_layout.h"
#include "dist/unit_gather.h"
#include "model/language_model.h"

namespace halflife::train {

// Returns the unit of each parameter, 1 + its layer, or -1 for parameters that every rank holds as
// a whole: tables that several layers read (a tied embedding, shared bounds) and those of
// positions.
std::vector<int> UnitsOf(const model::LanguageModel& model);

class ParameterUnits final : public dist::UnitMemory {
 public:
  struct Config {
    at::Device device = at::kCPU;
    at::ScalarType dtype = at::kFloat;
    std::vector<int> units = {};  // LayoutConfig::units
    int num_units = 0;
    int prefetch = 1;
  };
  // Borrows the layout, which was made with the same units.
  ParameterUnits(const dist::ParameterLayout& layout, const Config& config);

  // The end of the units in the arena. Elements from there on belong to no unit.
  int64_t end() const { return end_; }
  const std::vector<int>& buckets_of(int unit) const override { return units_[unit].buckets; }
  bool has(int param) const;
  // Returns the parameter as a view of its unit's storage, in its shape.
  at::Tensor View(int param) const;

  void Place(int unit, int slot) override;
  void Release(int unit, int slot) override;
  TensorRef BucketIn(int slot, int unit, int bucket) const override;

  int num_units() const override { return static_cast<int>(units_.size()); }
  int prefetch() const override { return config_.prefetch; }
  int64_t bytes() const;  // of all slots

 private:
  struct Unit {
    int64_t begin = 0, end = 0;  // elements of the arena
    std::vector<int> buckets;
    c10::Storage storage;
  };
  char* AddressIn(int slot, int unit) const;
  int64_t element_bytes() const;

  const dist::ParameterLayout& layout_;
  Config config_;
  int64_t end_ = 0;
  std::vector<Unit> units_;
  std::vector<at::Tensor> slots_;  // bytes, with room to align a unit as in the arena
  bool poisons_;
};

}  // namespace halflife::train
