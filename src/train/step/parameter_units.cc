#include "train/step/parameter_units.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "core/error.h"
#include "ops/torch/tensor_views.h"

namespace halflife::train {
namespace {

constexpr int64_t kPage = 4096;

// Allocates the memory of a slot. On the CPU it begins at a page, like the arena.
at::Tensor SlotOfBytes(int64_t bytes, at::Device device) {
  if (!device.is_cpu() || bytes == 0)
    return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  void* memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  HL_CHECK_AS(ExitCode::kEnvironment, memory != nullptr, "cannot allocate ", bytes,
              " bytes for the weights of a layer. Use a smaller parallel.prefetch.");
  return at::from_blob(
      memory, {bytes}, [](void* data) { std::free(data); }, at::TensorOptions(at::kByte));
}

bool PoisonIsOn() {
  const char* const value = std::getenv("HALFLIFE_POISON_UNITS");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

std::vector<int> UnitsOf(const model::LanguageModel& model) {
  std::vector<int> units;
  for (int param = 0; param < model.parameters().size(); ++param) {
    const dist::ParamSpec& spec = model.parameters().specs()[param];
    const bool shared =
        spec.readers > 1 || !spec.aliases.empty() || spec.name.starts_with("positions.");
    units.push_back(shared ? -1 : static_cast<int>(1 + model.LayerOf(param)));
  }
  return units;
}

ParameterUnits::ParameterUnits(const dist::ParameterLayout& layout, const Config& config)
    : layout_(layout), config_(config), poisons_(PoisonIsOn()) {
  units_.resize(config.num_units);
  const dist::UnitSchedule schedule(config.num_units, config.prefetch);
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const dist::Bucket& bucket = layout.buckets()[index];
    const int of_bucket = config.units[bucket.params[0]];
    if (bucket.region != dist::Region::kCompute || of_bucket < 0) continue;
    Unit& unit = units_[of_bucket];
    HL_CHECK(unit.buckets.empty() || unit.end == bucket.begin, "the buckets of unit ", of_bucket,
             " are not adjacent");
    if (unit.buckets.empty()) unit.begin = bucket.begin;
    unit.end = end_ = bucket.end;
    unit.buckets.push_back(static_cast<int>(index));
  }
  std::vector<int64_t> slot_bytes(schedule.num_slots(), 0);
  for (int index = 0; index < config.num_units; ++index) {
    Unit& unit = units_[index];
    const int64_t bytes = (unit.end - unit.begin) * element_bytes();
    unit.storage = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                                at::DataPtr(nullptr, config.device), /*allocator=*/nullptr,
                                /*resizable=*/false);
    int64_t& most = slot_bytes[schedule.SlotOf(index)];
    most = std::max(most, bytes);
  }
  for (const int64_t bytes : slot_bytes)
    slots_.push_back(SlotOfBytes(bytes == 0 ? 0 : bytes + kPage, config.device));
}

int64_t ParameterUnits::element_bytes() const {
  return static_cast<int64_t>(c10::elementSize(config_.dtype));
}

bool ParameterUnits::has(int param) const {
  return layout_.specs()[param].region == dist::Region::kCompute && config_.units[param] >= 0;
}

at::Tensor ParameterUnits::View(int param) const {
  const Unit& unit = units_[config_.units[param]];
  const std::vector<int64_t>& shape = layout_.specs()[param].shape;
  const auto options = at::TensorOptions().dtype(config_.dtype).device(config_.device);
  if (config_.device.is_meta()) return at::empty(shape, options);
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  at::Tensor view = at::empty({0}, options);
  view.set_(unit.storage, layout_.offset(param) - unit.begin, shape, strides);
  return view;
}

// Bits of a BLAS call may depend on alignment, so a unit has the same place within a page as in the
// arena.
char* ParameterUnits::AddressIn(int slot, int unit) const {
  const at::Tensor& memory = slots_[slot];
  if (memory.is_meta() || memory.numel() == 0) return nullptr;
  return static_cast<char*>(memory.mutable_data_ptr()) +
         units_[unit].begin * element_bytes() % kPage;
}

void ParameterUnits::Place(int unit, int slot) {
  units_[unit].storage.set_data_ptr_noswap(at::DataPtr(AddressIn(slot, unit), config_.device));
}

void ParameterUnits::Release(int unit, int slot) {
  units_[unit].storage.set_data_ptr_noswap(at::DataPtr(nullptr, config_.device));
  if (!poisons_ || slots_[slot].is_meta()) return;
  slots_[slot]
      .narrow(0, 0, slots_[slot].numel() / 4 * 4)
      .view(at::kFloat)
      .fill_(std::numeric_limits<float>::quiet_NaN());
}

TensorRef ParameterUnits::BucketIn(int slot, int unit, int bucket) const {
  const dist::Bucket& of_unit = layout_.buckets()[bucket];
  const at::Tensor& memory = slots_[slot];
  TensorRef ref = ops::RefOf(memory);
  ref.data = AddressIn(slot, unit);
  ref.count = units_[unit].end - units_[unit].begin;
  ref.dtype = config_.dtype == at::kFloat ? DType::kF32 : DType::kBF16;
  return ref.Slice(of_unit.begin - units_[unit].begin, of_unit.end - of_unit.begin);
}

int64_t ParameterUnits::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& slot : slots_) sum += static_cast<int64_t>(slot.nbytes());
  return sum;
}

}  // namespace halflife::train
