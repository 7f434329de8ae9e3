// One tile of queries and one tile of keys: the scores of the visible pairs, and products with
// their weights. Used by forward and backward.
//
// For products that decay with the distance, the factor of a pair is divided into parts that cannot
// overflow at any length. e^(rate (m - n)) is the product of e^(rate (m - m0)) for the query, with
// m0 the first query of its tile; e^(rate (n1 - n)) for the key, with n1 the last key of its tile;
// and e^(rate (m0 - n1)) for the pair of tiles. The first two are at most 1 and come from one
// table, read from either end. The third is above 1 only on the diagonal, by at most the decay of
// 63 tokens. It is a product of a few exponentials with adjacent ranges: one for each power of two
// in the number of tiles between, and the remainder. All of them are fp64 until they are stored.
// Computing an exponential for each element of the table and of each pair would cost a sixth of a
// forward at 512 tokens.
#pragma once

#include "kernels/common/cpu/chunk_rows.h"
#include "kernels/softmax_attention/cpu/kernels.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention {

using cpu::softmax_attention::Item;

constexpr int kTile = kAttentionTile;
constexpr int kRowStep = 16;  // rows of products are multiples of this, for every tile shape

// Columns of a tile of keys that a query sees: [begin, end) and, before these, [sinks, end_sinks).
struct RowSpan {
  int begin = 0, end = 0, sinks = 0, end_sinks = 0;
  bool empty() const { return begin >= end && sinks >= end_sinks; }
  bool whole() const { return begin == 0 && end == kTile; }
};
// The range from the first to the last query that sees any of a group of keys.
struct RowRange {
  int begin = 0, end = 0;
};

inline ChunkEntry TileOfTokens(int row, int tile, int num_tokens) {
  return {.token = int64_t{1} * tile * kTile,
          .row = row,
          .length = std::min(kTile, num_tokens - tile * kTile),
          .flags = 0,
          .padding = 0};
}

// Returns the rows of a tensor whose heads are not shared.
inline RowsOf RowsOfHead(const TensorView& view, const ChunkEntry& tokens, int head) {
  return RowsOf(view, tokens, head, 1, 1);
}

template <typename T>
class TilePair {
 public:
  TilePair(const SoftmaxAttentionArgs& args, ScratchSpace& space)
      : args_(args),
        dim_(args.head_dim),
        dim_rows_(RoundUp(dim_, kRowStep)),
        num_tiles_((args.num_keys + kTile - 1) / kTile) {
    rows_ = space.Matrix<T>(kTile, dim_);
    q_ = space.Matrix<T>(kTile, dim_);
    scores_ = space.Matrix<T>(kTile, kTile);
    keys_ = space.Matrix<T>(num_tiles_ * dim_rows_, kTile);
    if (args.has_far()) {
      far_q_ = space.Matrix<T>(kTile, dim_);
      far_scores_ = space.Matrix<T>(kTile, kTile);
      far_keys_ = !args.own_far_keys ? keys_ : space.Matrix<T>(num_tiles_ * dim_rows_, kTile);
    }
    if (args.dropout.drops()) kept_ = space.Matrix<T>(kTile, kTile);
    if (args.decay_rates != nullptr) {
      met_q_ = space.Matrix<T>(kTile, dim_);
      decays_ = space.Matrix<T>(kTile, dim_);
      pair_decays_ = space.Array<T>(RoundUp(dim_, kPanel));
      tile_decays_ = space.Array<double>(int64_t{1} * (NumPowers() + 2) * dim_);
    }
  }

  int num_tiles() const { return num_tiles_; }
  int num_rows() const { return num_rows_; }
  const RowSpan& span(int r) const { return spans_[r]; }

  // Call once, before tiles are loaded.
  void FillDecays() {
    if (args_.decay_rates == nullptr) return;
    Clear(decays_, kTile, dim_);
    for (int i = 0; i < RoundUp(dim_, kPanel); ++i) pair_decays_[i] = 0;
    for (int i = 0; i < dim_; ++i) {
      const double rate = args_.decay_rates[i];
      double decay[kTile] = {1, std::exp(rate)};
      for (int n = 2; n < kTile; ++n) decay[n] = decay[n / 2] * decay[n - n / 2];
      for (int n = 0; n < kTile; ++n) *decays_.Row(n, i) = static_cast<T>(decay[n]);
      tile_decays_[i] = std::exp(rate * (args_.num_past % kTile - 2 * kTile + 1));
      for (int power = 0; power < NumPowers(); ++power)
        tile_decays_[(power + 1) * dim_ + i] = std::exp(rate * kTile * (int64_t{1} << power));
    }
  }

  // ---- a tile of queries ----

  void LoadQueries(int row, int head, int tile) {
    const ChunkEntry tokens = TileOfTokens(row, tile, args_.num_queries);
    num_rows_ = tokens.length;
    first_query_ = static_cast<int>(tokens.token);
    const int64_t index = int64_t{1} * row * args_.num_queries + first_query_;
    first_ = args_.first + index, end_ = args_.end + index;
    sinks_ = args_.num_sinks > 0 ? args_.sinks + index : nullptr;
    bias_ = args_.bias == nullptr
                ? nullptr
                : static_cast<const T*>(args_.bias) + head * args_.bias_stride + args_.bias_zero;
    bias_scale_ =
        args_.bias_scale == nullptr ? nullptr : static_cast<const T*>(args_.bias_scale) + index;
    Load(args_.q, tokens, head, static_cast<T>(args_.scale), q_);
    DecayRows(kTile, q_);
    if (args_.has_far()) Load(args_.far_q, tokens, head, static_cast<T>(args_.scale), far_q_);
    if (args_.dropout.drops()) sample_of_head_ = SampleOfHead(args_.dropout.samples[row], head);
  }
  // Returns true if any query of the tile sees a key of the key tile.
  bool Meets(int tile) {
    bool any = false, whole = true;
    for (int r = 0; r < num_rows_; ++r) {
      spans_[r] = SpanOf(r, tile * kTile);
      any = any || !spans_[r].empty();
      whole = whole && spans_[r].whole();
    }
    if (any) FindRowsThatSee(whole);
    return any;
  }
  // Returns the queries that see any of Tile<T>::kRows keys from `key` on. Products skip pairs that
  // no query sees: on the diagonal, a quarter of the scores and 7 / 16 of the sums.
  const RowRange& RowsThatSee(int key) const { return rows_that_see_[key / Tile<T>::kRows]; }
  // Returns true if some query of a product's tile sees, or may see, one of its keys.
  bool Sees(int row, int column) const {
    for (int key = column; key < column + Tile<T>::kColumns; key += Tile<T>::kRows)
      if (RowsThatSee(key).begin < row + Tile<T>::kRows && row < RowsThatSee(key).end) return true;
    return false;
  }

  // ---- a tile of keys ----

  // Loads the keys transposed, for the scores, and also untransposed if `rows` and `far_rows` have
  // data.
  void LoadKeys(const ChunkEntry& tokens, int head, int tile, const Panels<T>& rows = {},
                const Panels<T>& far_rows = {}) {
    const Panels<T>& near = rows.data == nullptr ? rows_ : rows;
    Load(args_.k, tokens, head, T(1), near);
    DecayKeys(near);
    Transpose(near, KeysOf(keys_, tile), kTile, dim_rows_);
    if (!args_.own_far_keys) return;
    const Panels<T>& far = far_rows.data == nullptr ? rows_ : far_rows;
    Load(args_.far_k, tokens, head, T(1), far);
    Transpose(far, KeysOf(far_keys_, tile), kTile, dim_rows_);
  }

  // ---- the pair ----

  enum class Distance { kNear, kFar, kBoth };

  // Computes the scores of the tile that Meets() was last called for; -inf for keys that a query
  // does not see. Rows of queries that see no key are undefined.
  void ComputeScores(int tile) {
    distance_ = DistanceTo(tile);
    if (distance_ != Distance::kFar) {
      if (args_.decay_rates != nullptr) DecayQueries(tile);
      Product(queries(), KeysOf(keys_, tile), scores_);
    }
    if (distance_ != Distance::kNear)
      Product(far_q_, KeysOf(far_keys_, tile), distance_ == Distance::kFar ? scores_ : far_scores_);
    for (int r = 0; r < num_rows_; ++r) FinishScores(r, tile);
  }

  // Computes the dropout factor of each pair: 0 for pairs that are dropped.
  void DrawKept(int tile) {
    constexpr int kDrawsOfRow = kTile / 4, kRowsAtOnce = 4;
    PhiloxLanes<kRowsAtOnce * kDrawsOfRow> words;
    const PairDropout& dropout = args_.dropout;
    for (int row = 0; row < num_rows_; row += kRowsAtOnce) {
      for (int lane = 0; lane < kRowsAtOnce * kDrawsOfRow; ++lane)
        words.SetCounter(lane, sample_of_head_,
                         static_cast<uint32_t>(QueryPlace(row + lane / kDrawsOfRow)),
                         static_cast<uint32_t>(tile * kDrawsOfRow + lane % kDrawsOfRow));
      words.Draw(dropout.key);
      for (int lane = 0; lane < kRowsAtOnce * kDrawsOfRow; ++lane) {
        T* const four = kept_.Row(row + lane / kDrawsOfRow, lane % kDrawsOfRow * 4);
        for (int i = 0; i < 4; ++i)
          four[i] = (words.x[i][lane] >> 8) < dropout.threshold ? T(0) : T(dropout.scale);
      }
    }
  }
  // Selects instead of multiplying, so that a dropped infinity becomes zero.
  static HL_INLINE Vec<T> Keep(Vec<T> x, Vec<T> kept) { return kept == T(0) ? Vec<T>{} : x * kept; }
  // Applies the factors of DrawKept() to the weights, which have replaced the scores.
  void DropWeights() {
    for (int r = 0; r < num_rows_; ++r)
      for (int j = 0; j < kTile && !spans_[r].empty(); j += kLanes<T>) {
        T* const place = scores_.Row(r, j);
        At(place) = Keep(At(place), At(kept_.Row(r, j)));
      }
  }

  // Adds weights right to out [tile, width], with right [tile, width] of the keys. Keys that a
  // query does not see are skipped, because zero times a NaN would be NaN.
  void AddSeen(const Panels<T>& weights, const Panels<T>& right, int width, const Panels<T>& out) {
    AddSeenBy<false>(weights, right, width, out);
  }
  // The same for d columns, each multiplied by its decay of the pair.
  void AddSeenDecayed(const Panels<T>& weights, const Panels<T>& right, const Panels<T>& out) {
    AddSeenBy<true>(weights, right, dim_, out);
  }

  // Returns the number of columns of row r that are at a distance of far_from or more.
  int FarColumns(int r, int tile) const {
    return QueryPlace(r) - tile * kTile - args_.far_from + 1;
  }
  // Returns, for row r, the index in `table` [bias_stride] that the tile's first key reads.
  int64_t BiasOffset(int r, int tile) const { return int64_t{tile} * kTile - QueryPlace(r); }
  T BiasScale(int r) const { return bias_scale_ == nullptr ? T(1) : bias_scale_[r]; }

  Distance distance() const { return distance_; }
  const Panels<T>& scores() const { return scores_; }
  const Panels<T>& kept() const { return kept_; }
  const Panels<T>& rows() const { return rows_; }
  const Panels<T>& far_queries() const { return far_q_; }
  // The queries as used in the scores.
  const Panels<T>& queries() const { return args_.decay_rates != nullptr ? met_q_ : q_; }
  RowsAhead& ahead() { return ahead_; }

  // Multiplies rows of a tile of queries by their decay since its first, or rows of keys by their
  // decay until its last.
  void DecayRows(int rows, const Panels<T>& x) const {
    if (args_.decay_rates == nullptr) return;
    Multiply(rows, x, [&](int r) HL_INLINE_LAMBDA { return r; });
  }
  void DecayKeys(const Panels<T>& x) const {
    if (args_.decay_rates == nullptr) return;
    Multiply(kTile, x, [&](int r) HL_INLINE_LAMBDA { return kTile - 1 - r; });
  }

 private:
  void Load(const TensorView& view, const ChunkEntry& tokens, int head, T factor,
            const Panels<T>& to) const {
    LoadRows(RowsOfHead(view, tokens, head), tokens.length, kTile, dim_, factor, to);
  }
  Panels<T> KeysOf(const Panels<T>& keys, int tile) const {
    return {keys.data + int64_t{1} * tile * dim_rows_ * kTile, dim_rows_ * kPanel};
  }
  int QueryPlace(int r) const { return args_.num_past + first_query_ + r; }

  RowSpan SpanOf(int r, int base) const {
    const auto column = [&](int key) { return std::clamp(key - base, 0, kTile); };
    RowSpan span = {.begin = column(first_[r]), .end = column(end_[r])};
    if (sinks_ == nullptr) return span;
    span.sinks = column(sinks_[r]);
    span.end_sinks = column(std::min(sinks_[r] + args_.num_sinks, first_[r]));
    return span;
  }
  void FindRowsThatSee(bool whole) {
    for (RowRange& rows : rows_that_see_) rows = {0, whole ? num_rows_ : 0};
    for (int r = 0; r < num_rows_ && !whole; ++r) {
      const auto see = [&](int begin, int end) {
        for (int key = begin / Tile<T>::kRows * Tile<T>::kRows; key < end; key += Tile<T>::kRows) {
          RowRange& rows = rows_that_see_[key / Tile<T>::kRows];
          if (rows.end == 0) rows.begin = r;
          rows.end = r + 1;
        }
      };
      see(spans_[r].begin, spans_[r].end);
      see(spans_[r].sinks, spans_[r].end_sinks);
    }
  }
  Distance DistanceTo(int tile) const {
    if (!args_.has_far()) return Distance::kNear;
    const int longest = QueryPlace(num_rows_ - 1) - tile * kTile;
    const int shortest = QueryPlace(0) - (tile * kTile + kTile - 1);
    if (longest < args_.far_from) return Distance::kNear;
    return shortest >= args_.far_from ? Distance::kFar : Distance::kBoth;
  }
  template <typename Distance>  // distance(r): the number of tokens that row r decays
  HL_INLINE void Multiply(int rows, const Panels<T>& x, Distance distance) const {
    for (int column = 0; column < dim_; column += kPanel)
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < kPanel; j += kLanes<T>)
          At(x.Row(r, column) + j) *= At(decays_.Row(distance(r), column) + j);
  }
  // Returns the number of powers of two in tile counts up to num_tiles_.
  int NumPowers() const {
    int powers = 0;
    while (num_tiles_ >> powers > 0) ++powers;
    return powers;
  }
  // Computes the decays of the key tile `tile`. If some query of a tile sees some key of another
  // tile, the first query is num_past % 64 - 127 tokens (the first row of tile_decays_) plus a
  // whole number of tiles after the end of the key tile.
  void FindPairDecays(int tile) {
    const int tiles = (QueryPlace(0) - args_.num_past % kTile) / kTile - tile + 1;
    double* const decays = tile_decays_ + (NumPowers() + 1) * dim_;
    for (int i = 0; i < dim_; ++i) decays[i] = tile_decays_[i];
    for (int power = 0; power < NumPowers(); ++power) {
      if ((tiles >> power & 1) == 0) continue;
      const double* const of_power = tile_decays_ + (power + 1) * dim_;
      for (int i = 0; i < dim_; ++i) decays[i] *= of_power[i];
    }
    for (int i = 0; i < dim_; ++i) pair_decays_[i] = static_cast<T>(decays[i]);
  }
  void DecayQueries(int tile) {
    FindPairDecays(tile);
    for (int column = 0; column < dim_; column += kPanel)
      for (int r = 0; r < num_rows_; ++r)
        for (int j = 0; j < kPanel; j += kLanes<T>)
          At(met_q_.Row(r, column) + j) = At(q_.Row(r, column) + j) * At(pair_decays_ + column + j);
  }
  void Product(const Panels<T>& q, const Panels<T>& keys, const Panels<T>& scores) {
    ForTiles<Tile<T>>(num_rows_, kTile, [&](int row, int column) HL_INLINE_LAMBDA {
      if (!Sees(row, column)) return;  // FinishScores() writes these elements
      Tile<T> tile(ahead_);
      tile.Clear();
      tile.MultiplyAdd(q, row, keys, column, 0, dim_);
      tile.Store(scores, row, column);
    });
  }
  HL_INLINE void FinishScores(int r, int tile) {
    const RowSpan& span = spans_[r];
    if (span.empty()) return;  // the scores of this row are not read
    const T far_columns = static_cast<T>(FarColumns(r, tile));
    const T* bias = bias_ == nullptr ? nullptr : bias_ + BiasOffset(r, tile);
    const T bias_scale = BiasScale(r);
    for (int j = 0; j < kTile; j += kLanes<T>) {
      const Vec<T> column = LaneNumbers<T>() + T(j);
      T* const place = scores_.Row(r, j);
      Vec<T> x = At(place);
      if (distance_ == Distance::kBoth) x = column < far_columns ? At(far_scores_.Row(r, j)) : x;
      if (bias != nullptr) x += LoadUnaligned(bias + j) * bias_scale;
      if (!span.whole()) {
        const auto seen = ((column >= T(span.begin)) & (column < T(span.end))) |
                          ((column >= T(span.sinks)) & (column < T(span.end_sinks)));
        x = seen ? x : Vec<T>{} - std::numeric_limits<T>::infinity();
      }
      At(place) = x;
    }
  }
  // Returns the columns that all queries of a group of rows see, starting at a multiple of 32; none
  // if some of them see sinks too.
  std::pair<int, int> SeenByAll(int row) const {
    int begin = 0, end = kTile;
    for (int r = row; r < std::min(row + Tile<T>::kRows, num_rows_); ++r) {
      begin = std::max(begin, spans_[r].begin);
      end = spans_[r].sinks < spans_[r].end_sinks ? 0 : std::min(end, spans_[r].end);
    }
    begin = RoundUp(begin, kPanel);
    return begin < end ? std::pair(begin, end) : std::pair(0, 0);
  }
  template <bool kDecayed>
  void AddSeenBy(const Panels<T>& weights, const Panels<T>& right, int width,
                 const Panels<T>& out) {
    for (int row = 0; row < num_rows_; row += Tile<T>::kRows) {
      const auto [begin, end] = SeenByAll(row);
      for (int r = row; r < std::min(row + Tile<T>::kRows, num_rows_); ++r) {
        const RowSpan& span = spans_[r];
        AddKeys<kDecayed>(weights, right, width, r, span.sinks, span.end_sinks, out);
        AddKeys<kDecayed>(weights, right, width, r, span.begin, std::min(begin, span.end), out);
        AddKeys<kDecayed>(weights, right, width, r, std::max(end, span.begin), span.end, out);
      }
      for (int column = 0; column < width && begin < end; column += Tile<T>::kColumns) {
        Tile<T> tile(ahead_);
        const T* before = out.Row(row, column);
        tile.ForEach([&](Vec<T>& sum, int r, int j) HL_INLINE_LAMBDA {
          sum = kDecayed ? Vec<T>{} : At(before + r * kPanel + j);
        });
        tile.MultiplyAdd(weights, row, right, column, begin, end);
        if constexpr (kDecayed)
          tile.ForEach([&](Vec<T>& sum, int r, int j) HL_INLINE_LAMBDA {
            sum = At(before + r * kPanel + j) + sum * At(pair_decays_ + column + j);
          });
        tile.Store(out, row, column);
      }
    }
  }
  template <bool kDecayed>
  void AddKeys(const Panels<T>& weights, const Panels<T>& right, int width, int r, int begin,
               int end, const Panels<T>& out) const {
    for (int key = begin; key < end; ++key) {
      const T weight = *weights.Row(r, key);
      for (int column = 0; column < width; column += kLanes<T>) {
        Vec<T> x = weight * At(right.Row(key, column));
        if constexpr (kDecayed) x *= At(pair_decays_ + column);
        At(out.Row(r, column)) += x;
      }
    }
  }

  const SoftmaxAttentionArgs& args_;
  const int dim_, dim_rows_, num_tiles_;
  int num_rows_ = 0, first_query_ = 0;                                  // the tile of queries
  const int32_t *first_ = nullptr, *end_ = nullptr, *sinks_ = nullptr;  // for its rows
  const T* bias_ = nullptr;                                             // for distance 0
  const T* bias_scale_ = nullptr;                                       // for its rows
  uint64_t sample_of_head_ = 0;
  Distance distance_ = Distance::kNear;
  RowSpan spans_[kTile];
  RowRange rows_that_see_[kTile / Tile<T>::kRows];  // for each group of keys
  RowsAhead ahead_;  // fetches nothing, because tiles are in scratch memory

  Panels<T> rows_;                 // [tile, d] of keys, untransposed
  Panels<T> q_, far_q_, met_q_;    // [tile, d], scaled
  Panels<T> keys_, far_keys_;      // [tiles of keys][d, tile]
  Panels<T> scores_, far_scores_;  // [tile, tile]
  Panels<T> kept_;                 // dropout factors [tile, tile]
  Panels<T> decays_;               // [tile, d] for distances of 0 to 63 tokens
  T* pair_decays_ = nullptr;       // [d]
  // [powers + 2, d]: for the nearest pair of tiles, for 1, 2, 4, ... additional tiles, and for the
  // current pair.
  double* tile_decays_ = nullptr;
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention
