// The plan of an exchange of matrices covers every element once, and the exchange brings each
// matrix to its owner and back.
#include "train/step/matrix_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "core/concat.h"
#include "dist/local_communicator.h"
#include "support/expect_error.h"

namespace halflife::train {
namespace {

using testing::ElementsAre;

dist::ParameterLayout Layout(int num_slices) {
  return {{{.name = "q", .shape = {12, 16}, .parts = {{.rows = 12, .heads = 3}}},
           {.name = "norm", .shape = {16}, .region = dist::Region::kFp32},
           {.name = "qkv", .shape = {48, 8}, .parts = {{.rows = 32, .heads = 2}, {.rows = 16}}},
           {.name = "embedding", .shape = {20, 8}},
           {.name = "beta", .shape = {4, 8}, .parts = {{.rows = 4, .heads = 4}}}},
          {.first_bucket_bytes = 1024, .bucket_bytes = 1024, .num_slices = num_slices}};
}

TEST(FindMatrices, AreThePartsOrTheirHeads) {
  const auto shapes = [](bool per_head) {
    std::vector<std::string> texts;
    for (const WholeMatrix& matrix : FindMatrices(Layout(1), per_head))
      texts.push_back(
          Concat(matrix.param, "+", matrix.begin, ": ", matrix.rows, " x ", matrix.columns));
    return texts;
  };
  EXPECT_THAT(shapes(false),
              ElementsAre("0+0: 12 x 16", "2+0: 32 x 8", "2+256: 16 x 8", "4+0: 4 x 8"));
  EXPECT_THAT(shapes(true),
              ElementsAre("0+0: 4 x 16", "0+64: 4 x 16", "0+128: 4 x 16", "2+0: 16 x 8",
                          "2+128: 16 x 8", "2+256: 16 x 8", "4+0: 4 x 8"))
      << "heads of one row stay together";
}

TEST(CutAtMatrices, KeepsThePlacesOfFragments) {
  const dist::ParameterLayout layout = Layout(3);
  const std::vector<WholeMatrix> matrices = FindMatrices(layout, true);
  int64_t of_matrices = 0, rest = 0;
  for (int slice = 0; slice < 3; ++slice) {
    const CutFragments cut = CutAtMatrices(layout.SliceFragments(slice), matrices);
    for (const HeldRange& range : cut.of_matrices) {
      const WholeMatrix& matrix = matrices[range.matrix];
      EXPECT_EQ(range.part.param, matrix.param);
      EXPECT_GE(range.part.begin, matrix.begin);
      EXPECT_LE(range.part.end, matrix.begin + matrix.count());
      EXPECT_EQ(range.part.arena_begin, layout.offset(matrix.param) + range.part.begin);
      of_matrices += range.part.end - range.part.begin;
    }
    for (const dist::Fragment& part : cut.rest) {
      EXPECT_TRUE(layout.specs()[part.param].parts.empty());
      rest += part.end - part.begin;
    }
  }
  EXPECT_EQ(of_matrices, 12 * 16 + 48 * 8 + 4 * 8);
  EXPECT_EQ(rest, 16 + 20 * 8);
}

TEST(AssignOwners, BalancesTheCosts) {
  EXPECT_THAT(AssignOwners({1, 8, 4, 3, 2, 2}, 2), ElementsAre(1, 0, 1, 1, 1, 0));
  EXPECT_THAT(AssignOwners({5, 5, 5}, 1), ElementsAre(0, 0, 0));
  EXPECT_THAT(AssignOwners({1, 2}, 4), ElementsAre(1, 0));
}

std::vector<double> Costs(const std::vector<WholeMatrix>& matrices) {
  std::vector<double> costs;
  for (const WholeMatrix& matrix : matrices) costs.push_back(static_cast<double>(matrix.count()));
  return costs;
}

// Returns the transformed element i of the matrix: it depends on all elements and on i.
float Transformed(const WholeMatrix& matrix, const float* values, int64_t i) {
  const float sum = std::accumulate(values, values + matrix.count(), 0.0f);
  return sum + 1000 * static_cast<float>(i) + values[i];
}

// Expects that each element comes back as if one rank had transformed the whole matrix. Every rank
// stages the numbers of its elements in the arena.
void ExpectExchange(int num_ranks, bool per_head, int64_t batch_elements) {
  SCOPED_TRACE(Concat(num_ranks, " ranks, per_head ", per_head, ", batches of ", batch_elements));
  const dist::ParameterLayout layout = Layout(num_ranks);
  const std::vector<WholeMatrix> matrices = FindMatrices(layout, per_head);
  std::vector<std::vector<HeldRange>> held;
  for (int slice = 0; slice < num_ranks; ++slice)
    held.push_back(CutAtMatrices(layout.SliceFragments(slice), matrices).of_matrices);
  dist::LocalWorld::Run(num_ranks, [&](dist::Communicator& comm) {
    MatrixExchange exchange(matrices,
                            PlanExchange(matrices, held, Costs(matrices),
                                         {.rank = comm.rank(), .batch_elements = batch_elements}),
                            num_ranks == 1 ? nullptr : &comm, at::kFloat);
    int64_t applied = 0;
    const auto apply = [&](const HeldRange& range, const at::Tensor& in) {
      const WholeMatrix& matrix = matrices[range.matrix];
      std::vector<float> whole(static_cast<size_t>(matrix.count()));
      std::iota(whole.begin(), whole.end(),
                static_cast<float>(layout.offset(matrix.param) + matrix.begin));
      for (int64_t i = range.part.begin; i < range.part.end; ++i)
        ASSERT_EQ(in.const_data_ptr<float>()[i - range.part.begin],
                  Transformed(matrix, whole.data(), i - matrix.begin));
      applied += in.numel();
    };
    for (int round = 0; round < 2; ++round)
      exchange.Run({.stage =
                        [](const HeldRange& range, const at::Tensor& out) {
                          float* const values = out.mutable_data_ptr<float>();
                          std::iota(values, values + out.numel(),
                                    static_cast<float>(range.part.arena_begin));
                        },
                    .transform =
                        [](const WholeMatrix& matrix, const at::Tensor& values) {
                          const at::Tensor before = values.clone();
                          for (int64_t i = 0; i < matrix.count(); ++i)
                            values.mutable_data_ptr<float>()[i] =
                                Transformed(matrix, before.const_data_ptr<float>(), i);
                        },
                    .apply = apply});
    int64_t own = 0;
    for (const HeldRange& range : held[static_cast<size_t>(comm.rank())])
      own += range.part.end - range.part.begin;
    EXPECT_EQ(applied, 2 * own);
  });
}

TEST(MatrixExchange, TransformsEachMatrixAsAWhole) {
  for (const int num_ranks : {1, 2, 3, 4, 8})
    for (const bool per_head : {false, true})
      for (const int64_t batch_elements : {1, 40, 1 << 20})
        ExpectExchange(num_ranks, per_head, batch_elements);
}

TEST(MatrixExchange, BuffersHoldThreeBatches) {
  const dist::ParameterLayout layout = Layout(1);
  const std::vector<WholeMatrix> matrices = FindMatrices(layout, false);
  const std::vector<std::vector<HeldRange>> held = {
      CutAtMatrices(layout.AllFragments(), matrices).of_matrices};
  const auto bytes = [&](int64_t batch_elements) {
    const ExchangePlace place = {.batch_elements = batch_elements};
    return MatrixExchange(matrices, PlanExchange(matrices, held, Costs(matrices), place), nullptr,
                          at::kFloat)
        .buffer_bytes();
  };
  EXPECT_EQ(bytes(1 << 20), 4 * (12 * 16 + 48 * 8 + 4 * 8)) << "one batch";
  EXPECT_EQ(bytes(1), 4 * (32 * 8 + 12 * 16 + 16 * 8)) << "three matrices of four";
}

TEST(MatrixExchange, RefusesHoldersThatLackElements) {
  const dist::ParameterLayout layout = Layout(2);
  const std::vector<WholeMatrix> matrices = FindMatrices(layout, false);
  const auto half = CutAtMatrices(layout.SliceFragments(0), matrices).of_matrices;
  EXPECT_HL_ERROR(MatrixExchange(matrices, PlanExchange(matrices, {half}, Costs(matrices), {}),
                                 nullptr, at::kFloat),
                  ExitCode::kInternal, "the ranks hold", "elements of matrix 0");
}

}  // namespace
}  // namespace halflife::train
