// The code that all communicators share: the group of one rank, byte helpers, argument checks and
// error messages.
#include "dist/communicator.h"

#include <gtest/gtest.h>

#include "dist/collective_cases.h"
#include "dist/local_communicator.h"
#include "dist/rank_context.h"
#include "support/expect_error.h"

namespace halflife::dist {
namespace {

TEST(SelfCommunicator, EveryOperationIsItsDefinition) {
  const std::unique_ptr<Communicator> self = MakeSelfCommunicator("alone");
  EXPECT_EQ(self->name(), "alone");
  const std::vector<test::CollectiveCase> cases = test::AllCases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const int index = static_cast<int>(i);
    EXPECT_EQ(test::Run(cases[i], *self, index), test::Expected(cases[i], 0, 1, index))
        << ToString(cases[i]);
  }
}

TEST(SelfCommunicator, SplitsAndAborts) {
  const std::unique_ptr<Communicator> self = MakeSelfCommunicator("alone");
  EXPECT_EQ(self->Split(-1, 0, "none"), nullptr);
  const std::unique_ptr<Communicator> part = self->Split(3, 0, "part");
  EXPECT_EQ(part->name(), "part");
  int32_t sent = 5, received = 0;
  self->SendRecv(Ref(&sent, 1), 0, Ref(&received, 1), 0, {"loop", 0}, nullptr).WaitHost();
  EXPECT_EQ(received, 5);
  self->Abort("stop");
  EXPECT_HL_ERROR(self->Barrier({"late", 0}), ExitCode::kPeerLost, "stopped because stop");
}

TEST(CommunicatorBytes, TravelWithTheirLengths) {
  for (const int size : {1, 3}) {
    LocalWorld::Run(size, [&](Communicator& comm) {
      const std::string mine(comm.rank() * 5,
                             static_cast<char>('a' + comm.rank()));  // Empty on rank 0.
      const std::vector<std::string> all = AllGatherBytes(comm, mine, {"bytes", 0});
      ASSERT_EQ(static_cast<int>(all.size()), size);
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(all[r], std::string(r * 5, static_cast<char>('a' + r)));
      }
      const int root = size - 1;
      const std::string text = comm.rank() == root ? std::string("a\0b", 3) : "something longer";
      EXPECT_EQ(BroadcastBytes(comm, text, root, {"bytes", 1}), std::string("a\0b", 3));
      EXPECT_EQ(BroadcastBytes(comm, "", 0, {"bytes", 2}), "");
    });
  }
}

TEST(CommunicatorBytes, AreGatheredOnRankZero) {
  for (const int size : {1, 2, 3, 5, 8}) {
    LocalWorld::Run(size, [&](Communicator& comm) {
      const std::string mine(comm.rank() * 5, static_cast<char>('a' + comm.rank()));
      const std::vector<std::string> all = GatherBytes(comm, mine, {"bytes", 0});
      ASSERT_EQ(static_cast<int>(all.size()), comm.rank() == 0 ? size : 0);
      for (size_t r = 0; r < all.size(); ++r)
        EXPECT_EQ(all[r], std::string(r * 5, static_cast<char>('a' + r)));
    });
  }
}

TEST(Communicator, MisuseSaysWhatWasMet) {
  const std::unique_ptr<Communicator> self = MakeSelfCommunicator("alone");
  float x[8] = {};
  double d[8] = {};
  const OpTag tag = {"misuse", 2};
  EXPECT_HL_ERROR(self->ReduceScatter(Ref(x, 4), Ref(x, 3), ReduceOp::kSum, tag, nullptr),
                  ExitCode::kInternal, "reduce_scatter 'misuse' 2 (group alone",
                  "4 elements, not 1 x 3");
  EXPECT_HL_ERROR(self->AllGather(Ref(x, 4), Ref(x, 3), tag, nullptr), ExitCode::kInternal,
                  "out has 3 elements");
  EXPECT_HL_ERROR(self->AllGather(Ref(x, 4), Ref(d, 4), tag, nullptr), ExitCode::kInternal,
                  "dtypes fp32 and fp64 differ");
  EXPECT_HL_ERROR(self->AllGatherV(Ref(x, 4), Ref(x, 4), std::vector<int64_t>{3}, tag, nullptr),
                  ExitCode::kInternal, "the counts say 3 and 3");
  EXPECT_HL_ERROR(self->AllToAll(Ref(x, 4), Ref(x, 3), tag, nullptr), ExitCode::kInternal,
                  "same multiple of 1");
  const std::vector<int64_t> three = {3}, four = {4};
  EXPECT_HL_ERROR(self->AllToAllV(Ref(x, 4), Ref(x, 4), three, four, tag, nullptr),
                  ExitCode::kInternal, "in has 4 and out 4 elements; the counts say 3 and 4");
  EXPECT_HL_ERROR(self->AllToAllV(Ref(x, 3), Ref(x, 4), three, four, tag, nullptr),
                  ExitCode::kInternal, "sends 3 elements to itself and expects 4");
  EXPECT_HL_ERROR(self->AllToAllV(Ref(x, 3), Ref(x, 3), {}, three, tag, nullptr),
                  ExitCode::kInternal, "0 and 1 counts for 1 ranks");
  EXPECT_HL_ERROR(self->Broadcast(Ref(x, 4), 1, tag, nullptr), ExitCode::kInternal, "root 1 of 1");
  EXPECT_HL_ERROR(self->SendRecv(Ref(x, 1), 1, Ref(x, 1), -1, tag, nullptr), ExitCode::kInternal,
                  "must lie in [-1, 1)");
  const TensorRef cuda = {x, 4, DType::kF32, {Device::Kind::kCuda, 0}};
  EXPECT_HL_ERROR(self->AllReduce(cuda, ReduceOp::kSum, tag, nullptr), ExitCode::kInternal,
                  "this group moves CPU tensors");
}

// The operations of a training step on one GPU. They are in place, so no data moves.
TEST(SelfCommunicator, AcceptsTensorsOfAGpu) {
  const auto self = MakeSelfCommunicator("world", Device::Kind::kCuda);
  float x[4] = {};
  const TensorRef cuda = {x, 4, DType::kF32, {Device::Kind::kCuda, 0}};
  self->AllReduce(cuda, ReduceOp::kSum, {"grad_bucket", 0}, nullptr).WaitHost();
  self->ReduceScatter(cuda, cuda, ReduceOp::kSum, {"grad_bucket", 1}, nullptr).WaitHost();
  self->Split(0, 0, "part")->AllGather(cuda, cuda, {"parameters", 0}, nullptr).WaitHost();
  EXPECT_HL_ERROR(self->AllReduce(Ref(x, 4), ReduceOp::kSum, {"host", 0}, nullptr),
                  ExitCode::kInternal, "this group moves CUDA tensors");
}

TEST(CommError, KindsHaveExitCodes) {
  using Kind = CommFailure::Kind;
  const auto code = [](Kind kind) { return static_cast<int>(CommError({kind, "text"}).code()); };
  EXPECT_EQ(code(Kind::kTimeout), 71);
  EXPECT_EQ(code(Kind::kPeerLost), 72);
  EXPECT_EQ(code(Kind::kAborted), 72);
  EXPECT_EQ(code(Kind::kLibrary), 70);
  EXPECT_EQ(code(Kind::kDesync), 70);
}

TEST(OddRanks, AreTheMinority) {
  EXPECT_EQ(OddRanks({"a", "a", "a"}), std::vector<int>{});
  EXPECT_EQ(OddRanks({"a", "b", "b"}), std::vector<int>{0});
  EXPECT_EQ(OddRanks({"a", "b", "a", "c"}), (std::vector<int>{1, 3}));
  EXPECT_EQ(OddRanks({"a", "b"}), std::vector<int>{1}) << "a tie goes to the lowest rank";
}

TEST(OddRanks, DifferFromTheUsualValue) {
  EXPECT_EQ(UsualValue({"a", "b", "c", "c"}), "c");
  EXPECT_EQ(UsualValue({"b", "a", "a", "b"}), "b") << "a tie goes to the lowest rank";
}

TEST(CheckSameConfig, NamesOddRanksAndBothHashes) {
  EXPECT_HL_ERROR(LocalWorld::Run(4,
                                  [](Communicator& comm) {
                                    CheckSameConfig(comm, "1234");
                                    CheckSameConfig(comm, comm.rank() % 3 == 1 ? "beef" : "cafe");
                                  }),
                  ExitCode::kUsage, "ranks disagree about the config", "rank 1 has", "beef",
                  "cafe");
  // The value of the others is not that of another odd rank.
  const std::vector<std::string> hashes = {"beef", "f00d", "cafe", "cafe"};
  EXPECT_HL_ERROR(
      LocalWorld::Run(4, [&](Communicator& comm) { CheckSameConfig(comm, hashes[comm.rank()]); }),
      ExitCode::kUsage, "rank 0 and 1 has hash beef, the others cafe;");
}

}  // namespace
}  // namespace halflife::dist
