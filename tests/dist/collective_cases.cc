#include "dist/collective_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/bfloat16.h"
#include "core/philox.h"

namespace halflife::dist::test {
namespace {

using Bytes = std::vector<uint8_t>;

template <typename T>
T Get(const Bytes& bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <typename T>
void Put(Bytes& bytes, int64_t i, T value) {
  std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  return op == ReduceOp::kSum   ? static_cast<T>(a + b)
         : op == ReduceOp::kMax ? std::max(a, b)
                                : std::min(a, b);
}

// Adds level by level: neighbours are added until one term is left, and an odd term is carried
// over.
template <typename T>
T ReduceByLevels(ReduceOp op, std::vector<T> terms) {
  while (terms.size() > 1) {
    std::vector<T> next;
    for (size_t i = 0; i + 1 < terms.size(); i += 2)
      next.push_back(Combine(op, terms[i], terms[i + 1]));
    if (terms.size() % 2 == 1) next.push_back(terms.back());
    terms = std::move(next);
  }
  return terms[0];
}

template <typename T>
void ReduceElement(ReduceOp op, const std::vector<Bytes>& in, int64_t i, Bytes& out) {
  std::vector<T> terms;
  for (const Bytes& bytes : in) terms.push_back(Get<T>(bytes, i));
  Put(out, i, ReduceByLevels(op, terms));
}

Bytes NaiveReduce(const CollectiveCase& one, const std::vector<Bytes>& in, int64_t count) {
  Bytes out(count * SizeOf(one.dtype));
  for (int64_t i = 0; i < count; ++i) {
    switch (one.dtype) {
      case DType::kF32:
        ReduceElement<float>(one.reduce, in, i, out);
        break;
      case DType::kF64:
        ReduceElement<double>(one.reduce, in, i, out);
        break;
      case DType::kI32:
        ReduceElement<int32_t>(one.reduce, in, i, out);
        break;
      case DType::kI64:
        ReduceElement<int64_t>(one.reduce, in, i, out);
        break;
      case DType::kU8:
        ReduceElement<uint8_t>(one.reduce, in, i, out);
        break;
      case DType::kBF16: {
        std::vector<float> terms;
        for (const Bytes& bytes : in) terms.push_back(Widen(Get<Bf16>(bytes, i)));
        Put(out, i, RoundToBf16(ReduceByLevels(one.reduce, terms)));
        break;
      }
    }
  }
  return out;
}

Bytes Cut(const Bytes& bytes, size_t index, size_t parts) {
  const size_t length = bytes.size() / parts;
  return {bytes.begin() + static_cast<int64_t>(index * length),
          bytes.begin() + static_cast<int64_t>((index + 1) * length)};
}

// Counts are uneven on purpose, with an empty rank if there are three or more.
int64_t CountOf(const CollectiveCase& one, int rank) { return rank == 2 ? 0 : one.count + rank; }

// Returns the number of elements that a rank sends to another in an all-to-all-v. Every count
// differs, and some are 0.
int64_t CountOfPair(const CollectiveCase& one, int from, int to) {
  return (from + 2 * to) % 3 == 2 ? 0 : one.count + 2 * from + to;
}

std::vector<int64_t> CountsToEach(const CollectiveCase& one, int rank, int size) {
  std::vector<int64_t> counts;
  for (int peer = 0; peer < size; ++peer) counts.push_back(CountOfPair(one, rank, peer));
  return counts;
}

std::vector<int64_t> CountsFromEach(const CollectiveCase& one, int rank, int size) {
  std::vector<int64_t> counts;
  for (int peer = 0; peer < size; ++peer) counts.push_back(CountOfPair(one, peer, rank));
  return counts;
}

int64_t Total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{});
}

bool IsReduction(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter;
}

// Returns a rank's contribution to this case.
Bytes Input(const CollectiveCase& one, int rank, int size) {
  switch (one.kind) {
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
      return Payload(one.dtype, one.count * size, rank);
    case OpKind::kAllToAllV:
      return Payload(one.dtype, Total(CountsToEach(one, rank, size)), rank);
    case OpKind::kAllGatherV:
    case OpKind::kSendRecv:
      return Payload(one.dtype, CountOf(one, rank), rank);
    case OpKind::kBarrier:
      return {};
    default:
      return Payload(one.dtype, one.count, rank);
  }
}

}  // namespace

std::string ToString(const CollectiveCase& one) {
  return Concat(Name(one.kind), " ", Name(one.dtype), " op ", static_cast<int>(one.reduce), " x ",
                one.count);
}

std::vector<CollectiveCase> AllCases() {
  std::vector<CollectiveCase> cases;
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather,
                            OpKind::kAllGatherV, OpKind::kAllToAll, OpKind::kAllToAllV,
                            OpKind::kBroadcast, OpKind::kSendRecv, OpKind::kBarrier}) {
    for (const DType dtype :
         {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kI64, DType::kU8}) {
      for (const int64_t count : {0, 1, 3, 64, 1003}) {
        cases.push_back({kind, dtype, ReduceOp::kSum, count});
        if (!IsReduction(kind)) continue;
        cases.push_back({kind, dtype, ReduceOp::kMax, count});
        cases.push_back({kind, dtype, ReduceOp::kMin, count});
      }
    }
  }
  return cases;
}

Bytes Payload(DType dtype, int64_t count, int rank) {
  Bytes bytes(count * SizeOf(dtype));
  const RandomKey key = MakeRandomKey(17, RandomPurpose::kTest, static_cast<uint32_t>(rank));
  for (int64_t i = 0; i < count; ++i) {
    const RandomCounter bits = Draw(key, static_cast<uint64_t>(i), 0, 0);
    const int binade = static_cast<int>(bits.x[1] % 24) - 12;
    const double value = std::ldexp(2 * ToUniform(bits.x[0], bits.x[2]) - 1, binade);
    switch (dtype) {
      case DType::kF32:
        Put(bytes, i, static_cast<float>(value));
        break;
      case DType::kF64:
        Put(bytes, i, value);
        break;
      case DType::kBF16:
        Put(bytes, i, RoundToBf16(static_cast<float>(value)));
        break;
      case DType::kI32:
        Put(bytes, i, static_cast<int32_t>(bits.x[3]) / 16);
        break;
      case DType::kI64:
        Put(bytes, i, static_cast<int64_t>(bits.x[3]) - (int64_t{1} << 31));
        break;
      case DType::kU8:
        Put(bytes, i, static_cast<uint8_t>(bits.x[3]));
        break;
    }
  }
  return bytes;
}

Bytes Run(const CollectiveCase& one, Communicator& comm, int index, Device device) {
  Memory of_host;
  return Run(one, comm, index, device, of_host);
}

Bytes Run(const CollectiveCase& one, Communicator& comm, int index, Device device, Memory& memory) {
  const int rank = comm.rank(), size = comm.size();
  const OpTag tag = {"case", index};
  const auto element = static_cast<int64_t>(SizeOf(one.dtype));
  Bytes in = Input(one, rank, size);
  Bytes out;
  const auto place = [&](Bytes& bytes) {
    const auto count = static_cast<int64_t>(bytes.size()) / element;
    return TensorRef{memory.Place(bytes), count, one.dtype, device};
  };
  const TensorRef in_ref = place(in);
  const auto out_ref = [&](int64_t count) {
    out.assign(static_cast<size_t>(count * element), 0xee);
    return place(out);
  };
  Bytes* result = &out;
  switch (one.kind) {
    case OpKind::kAllReduce:
      comm.AllReduce(in_ref, one.reduce, tag, nullptr).WaitHost();
      result = &in;
      break;
    case OpKind::kReduceScatter:
      comm.ReduceScatter(in_ref, out_ref(one.count), one.reduce, tag, nullptr).WaitHost();
      break;
    case OpKind::kAllGather: {
      if (index % 2 == 0) {  // In place, as an optimizer gathers its slices.
        out.assign(static_cast<size_t>(one.count * size * element), 0xee);
        std::ranges::copy(in, out.begin() + rank * one.count * element);
        const TensorRef all = place(out);
        comm.AllGather(all.Slice(rank * one.count, one.count), all, tag, nullptr).WaitHost();
      } else {
        comm.AllGather(in_ref, out_ref(one.count * size), tag, nullptr).WaitHost();
      }
      break;
    }
    case OpKind::kAllGatherV: {
      std::vector<int64_t> counts;
      int64_t total = 0;
      for (int r = 0; r < size; ++r) total += counts.emplace_back(CountOf(one, r));
      comm.AllGatherV(in_ref, out_ref(total), counts, tag, nullptr).WaitHost();
      break;
    }
    case OpKind::kAllToAll:
      comm.AllToAll(in_ref, out_ref(one.count * size), tag, nullptr).WaitHost();
      break;
    case OpKind::kAllToAllV: {
      const std::vector<int64_t> to = CountsToEach(one, rank, size),
                                 from = CountsFromEach(one, rank, size);
      comm.AllToAllV(in_ref, out_ref(Total(from)), to, from, tag, nullptr).WaitHost();
      break;
    }
    case OpKind::kBroadcast:
      comm.Broadcast(in_ref, index % size, tag, nullptr).WaitHost();
      result = &in;
      break;
    case OpKind::kSendRecv: {  // One hop of a line, without wrap-around.
      const int to = rank + 1 < size ? rank + 1 : -1, from = rank - 1;
      comm.SendRecv(in_ref, to, out_ref(from < 0 ? 0 : CountOf(one, from)), from, tag, nullptr)
          .WaitHost();
      break;
    }
    case OpKind::kBarrier:
      comm.Barrier(tag).WaitHost();
      break;
  }
  memory.Return();
  return *result;
}

Bytes Expected(const CollectiveCase& one, int rank, int size, int index) {
  std::vector<Bytes> in;
  Bytes all;
  for (int r = 0; r < size; ++r) {
    in.push_back(Input(one, r, size));
    all.insert(all.end(), in.back().begin(), in.back().end());
  }
  switch (one.kind) {
    case OpKind::kAllReduce:
      return NaiveReduce(one, in, one.count);
    case OpKind::kReduceScatter:
      return Cut(NaiveReduce(one, in, one.count * size), rank, size);
    case OpKind::kAllGather:
    case OpKind::kAllGatherV:
      return all;
    case OpKind::kAllToAll: {
      Bytes out;
      for (const Bytes& source : in) {
        const Bytes piece = Cut(source, rank, size);
        out.insert(out.end(), piece.begin(), piece.end());
      }
      return out;
    }
    case OpKind::kAllToAllV: {
      Bytes out;
      for (int from = 0; from < size; ++from) {
        const std::vector<int64_t> counts = CountsToEach(one, from, size);
        const auto element = static_cast<int64_t>(SizeOf(one.dtype));
        const int64_t begin =
            element * std::accumulate(counts.begin(), counts.begin() + rank, int64_t{});
        out.insert(out.end(), in[from].begin() + begin,
                   in[from].begin() + begin + element * counts[rank]);
      }
      return out;
    }
    case OpKind::kBroadcast:
      return in[index % size];
    case OpKind::kSendRecv:
      return rank == 0 ? Bytes() : in[rank - 1];
    case OpKind::kBarrier:
      return {};
  }
  return {};
}

}  // namespace halflife::dist::test
