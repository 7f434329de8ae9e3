// Converts structs of tensors to lists of tensors and back. LibTorch's autograd passes lists; the
// operations use structs with named fields, so that no code depends on a position in a list.
//
//   struct Saved { at::Tensor x, weight; };
//   const std::vector<at::Tensor> list = ToList(Saved{.x = x, .weight = weight});  // {x, weight}
//   const auto saved = FromList<Saved>(list);                                      // saved.weight
//
// A struct is an aggregate. Each field is an at::Tensor, another such struct or, as the last field,
// a std::vector of either. The order in the list is the order of declaration. Undefined tensors
// stay undefined.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace halflife::ops {
namespace tensor_struct {

// Stands for a field of any type, to count the fields of an aggregate.
struct AnyField {
  template <typename T>
  operator T() const;  // NOLINT(google-explicit-constructor): never called
};
template <typename S, typename... Fields>
consteval size_t NumFields() {
  if constexpr (requires { S{Fields{}..., AnyField{}}; }) {
    return NumFields<S, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}

// Calls visit(field, field, ...) with all fields of the struct.
template <typename S, typename Visit>
void VisitFields(S& s, const Visit& visit) {
  constexpr size_t kCount = NumFields<std::remove_const_t<S>>();
  static_assert(std::is_aggregate_v<S> && kCount <= 14, "add a case below");
  if constexpr (kCount == 0) {
    visit();
  } else if constexpr (kCount == 1) {
    auto& [a] = s;
    visit(a);
  } else if constexpr (kCount == 2) {
    auto& [a, b] = s;
    visit(a, b);
  } else if constexpr (kCount == 3) {
    auto& [a, b, c] = s;
    visit(a, b, c);
  } else if constexpr (kCount == 4) {
    auto& [a, b, c, d] = s;
    visit(a, b, c, d);
  } else if constexpr (kCount == 5) {
    auto& [a, b, c, d, e] = s;
    visit(a, b, c, d, e);
  } else if constexpr (kCount == 6) {
    auto& [a, b, c, d, e, f] = s;
    visit(a, b, c, d, e, f);
  } else if constexpr (kCount == 7) {
    auto& [a, b, c, d, e, f, g] = s;
    visit(a, b, c, d, e, f, g);
  } else if constexpr (kCount == 8) {
    auto& [a, b, c, d, e, f, g, h] = s;
    visit(a, b, c, d, e, f, g, h);
  } else if constexpr (kCount == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = s;
    visit(a, b, c, d, e, f, g, h, i);
  } else if constexpr (kCount == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = s;
    visit(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (kCount == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = s;
    visit(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (kCount == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = s;
    visit(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (kCount == 13) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = s;
    visit(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = s;
    visit(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  }
}

template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;

// Calls visit(tensor) for every tensor in a field, in order.
template <typename Field, typename Visit>
void VisitTensors(Field& field, const Visit& visit) {
  if constexpr (std::is_same_v<std::remove_const_t<Field>, at::Tensor>) {
    visit(field);
  } else if constexpr (kIsVector<std::remove_const_t<Field>>) {
    for (auto& element : field) VisitTensors(element, visit);
  } else {
    VisitFields(field, [&](auto&... fields) { (VisitTensors(fields, visit), ...); });
  }
}

// Moves tensors into a field from list[next] on and advances `next`. A vector takes the rest of the
// list.
template <typename Field>
void Fill(Field& field, std::vector<at::Tensor>& list, size_t& next) {
  if constexpr (std::is_same_v<Field, at::Tensor>) {
    HL_CHECK(next < list.size(), "a list of ", list.size(), " tensors is too short for its struct");
    field = std::move(list[next++]);
  } else if constexpr (kIsVector<Field>) {
    while (next < list.size()) Fill(field.emplace_back(), list, next);
  } else {
    VisitFields(field, [&](auto&... fields) { (Fill(fields, list, next), ...); });
  }
}

}  // namespace tensor_struct

template <typename S>
std::vector<at::Tensor> ToList(const S& s) {
  std::vector<at::Tensor> list;
  tensor_struct::VisitTensors(s, [&](const at::Tensor& x) { list.push_back(x); });
  return list;
}

// Moves the tensors out of the list, so that a reference count of 1 stays 1.
template <typename S>
S FromList(std::vector<at::Tensor> list) {
  S s;
  size_t next = 0;
  tensor_struct::Fill(s, list, next);
  HL_CHECK(next == list.size(), "a list of ", list.size(), " tensors for a struct of ", next);
  return s;
}

// Returns the position of a field in the struct's list.
template <typename S, typename Field>
size_t IndexOfField(Field S::*field) {
  S s;
  size_t index = 0;
  bool found = false;
  const auto count = [&](auto& one) {
    found = found || static_cast<const void*>(&one) == static_cast<const void*>(&(s.*field));
    if (!found) tensor_struct::VisitTensors(one, [&](const at::Tensor&) { ++index; });
  };
  tensor_struct::VisitFields(s, [&](auto&... fields) { (count(fields), ...); });
  return index;
}

}  // namespace halflife::ops
