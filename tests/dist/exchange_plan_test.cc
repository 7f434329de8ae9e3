// Executes the message plans of all ranks in memory, with limits so small that every payload is
// split.
#include "dist/exchange_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <random>

#include "dist/collective_cases.h"

namespace halflife::dist {
namespace {

// A group whose messages are strings in mailboxes. Ranks advance in random order until all plans
// are finished.
class Mail {
 public:
  explicit Mail(unsigned seed) : random_(seed) {}

  void Add(ExchangePlan plan) {
    ranks_.push_back({.plan = std::move(plan), .chain = -1, .rounds = {}});
  }

  void Deliver() {
    for (int idle = 0; idle < 10'000;) {
      const int rank = static_cast<int>(random_() % ranks_.size());
      idle = Step(rank) ? 0 : idle + 1;
    }
    for (const Rank& rank : ranks_) EXPECT_TRUE(rank.through) << "a rank never gets its message";
    for (const auto& [pair, box] : boxes_)
      EXPECT_TRUE(box.empty()) << "a message that no rank received";
  }

  int64_t longest_message = 0;
  int64_t num_messages = 0;

 private:
  struct Rank {
    ExchangePlan plan;
    int64_t chain = -1;
    Chain rounds;
    size_t round = 0;
    bool posted = false, through = false;
  };

  bool Step(int index) {
    Rank& rank = ranks_[index];
    if (rank.through) return false;
    if (rank.round >= rank.rounds.size()) {
      rank.through = ++rank.chain >= rank.plan.num_chains;
      if (!rank.through) rank.rounds = rank.plan.make_chain(rank.chain);
      rank.round = 0;
      return true;
    }
    Round& round = rank.rounds[rank.round];
    if (!rank.posted) {
      for (const Message& message : round.sends) {
        longest_message = std::max(longest_message, message.bytes);
        boxes_[{index, message.peer}].emplace_back(message.data, message.bytes);
        ++num_messages;
      }
      rank.posted = true;
      return true;
    }
    for (const Message& message : round.receives) {
      if (boxes_[{message.peer, index}].empty()) return false;
    }
    for (const Message& message : round.receives) {
      std::deque<std::string>& box = boxes_[{message.peer, index}];
      EXPECT_EQ(static_cast<int64_t>(box.front().size()), message.bytes);
      box.front().copy(message.data, static_cast<size_t>(message.bytes));
      box.pop_front();
    }
    if (round.then) round.then();
    ++rank.round;
    rank.posted = false;
    return true;
  }

  std::mt19937 random_;
  std::deque<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<std::string>> boxes_;  // By (from, to), in order.
};

// Captures the request that a case issues instead of running it.
class Catcher final : public RequestCommunicator {
 public:
  Catcher(int rank, int size) : RequestCommunicator(rank, size, "mail") {}
  void Abort(const std::string&) noexcept override {}
  std::function<void(const Request&)> on_issue;

 private:
  std::unique_ptr<RequestCommunicator> SplitGroup(int, int, std::string) override {
    return nullptr;
  }
  Work Issue(Request request, int64_t) override {
    on_issue(request);
    return {};
  }
};

// Copies of one rank's buffers, which live until the plans are finished.
struct Buffers {
  std::vector<uint8_t> in, out;
  Request request;
};

Buffers CopyOf(const Request& request) {
  const auto bytes = [](const TensorRef& tensor) {
    const auto* data = static_cast<const uint8_t*>(tensor.data);
    return std::vector<uint8_t>(data, data + tensor.bytes());
  };
  return {bytes(request.in), bytes(request.out), request};
}

// Returns the request with the copies as buffers. In-place requests stay in place.
Request Bind(Buffers& buffers) {
  Request request = buffers.request;
  const auto* in = static_cast<const char*>(request.in.data);
  const auto* out = static_cast<const char*>(request.out.data);
  const int64_t inside = in - out;
  const bool aliased = request.in.bytes() > 0 && inside >= 0 &&
                       inside + static_cast<int64_t>(request.in.bytes()) <=
                           static_cast<int64_t>(request.out.bytes());
  request.out.data = buffers.out.data();
  request.in.data = aliased ? buffers.out.data() + inside : buffers.in.data();
  return request;
}

void Check(const test::CollectiveCase& one, int size, int index, const ExchangeLimits& limits) {
  std::vector<Buffers> buffers(size);
  for (int rank = 0; rank < size; ++rank) {
    Catcher catcher(rank, size);
    catcher.on_issue = [&](const Request& request) { buffers[rank] = CopyOf(request); };
    test::Run(one, catcher, index);
  }
  Mail mail(static_cast<unsigned>(index));
  for (int rank = 0; rank < size; ++rank) {
    mail.Add(MakeExchangePlan(Bind(buffers[rank]), rank, size, limits));
  }
  mail.Deliver();
  const int64_t element = static_cast<int64_t>(SizeOf(one.dtype));
  EXPECT_LE(mail.longest_message,
            std::max({limits.segment_bytes, limits.piece_bytes, limits.one_round_bytes, element}));
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(buffers[rank].out, test::Expected(one, rank, size, index))
        << ToString(one) << " on rank " << rank << " of " << size;
  }
}

TEST(ExchangePlan, CutPayloadsGiveTheDefinitionBitForBit) {
  const std::vector<test::CollectiveCase> cases = test::AllCases();
  for (const int size : {1, 2, 3, 4, 5}) {
    for (size_t i = 0; i < cases.size(); ++i) {
      if (cases[i].count > 64) continue;  // With 24-byte messages, 64 elements are already many.
      const int index = static_cast<int>(i);
      Check(cases[i], size, index, {.segment_bytes = 40, .piece_bytes = 24, .one_round_bytes = 0});
      Check(cases[i], size, index, {});
      // The tree of sums, which by default only groups of more than 32 ranks use.
      Check(cases[i], size, index, {.one_round_ranks = 1});
    }
  }
}

// Sums the same values over `size` ranks by the given plans. Returns rank 0's bytes after checking
// that all ranks have them.
template <typename T>
std::vector<T> Sum(int size, int64_t count, DType dtype, const ExchangeLimits& limits,
                   int64_t* num_messages) {
  std::vector<std::vector<T>> values(static_cast<size_t>(size));
  std::mt19937 random(7);
  for (std::vector<T>& own : values)
    for (int64_t i = 0; i < count; ++i) own.push_back(T{static_cast<float>(random()) / 3e4f});
  Mail mail(11);
  for (int rank = 0; rank < size; ++rank) {
    const TensorRef data = {values[rank].data(), count, dtype, {}};
    mail.Add(MakeExchangePlan({.kind = OpKind::kAllReduce, .in = data, .out = data}, rank, size,
                              limits));
  }
  mail.Deliver();
  *num_messages = mail.num_messages;
  for (const std::vector<T>& own : values)
    EXPECT_EQ(std::memcmp(own.data(), values[0].data(), count * sizeof(T)), 0);
  return values[0];
}

TEST(ExchangePlan, ScalarsOfManyRanksTakeATreeWithTheBitsOfOneRound) {
  constexpr int64_t kCount = 24;
  for (const int size : {33, 64, 100}) {
    int64_t tree = 0, one_round = 0;
    const auto by_tree = Sum<float>(size, kCount, DType::kF32, {}, &tree);
    EXPECT_EQ(by_tree,
              Sum<float>(size, kCount, DType::kF32, {.one_round_ranks = size}, &one_round));
    EXPECT_LE(tree, 2 * size);
    EXPECT_EQ(one_round, int64_t{size} * (size - 1));
  }
  int64_t tree = 0;
  Sum<float>(1024, kCount, DType::kF32, {}, &tree);
  EXPECT_EQ(tree, 2 * 1023);
}

// The votes of a save: the parts go up to rank 0 and its verdict goes down to all.
TEST(ExchangePlan, AVoteOfManyRanksTakesFourMessagesPerRank) {
  constexpr int kRanks = 1024;
  int64_t num_messages = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    Catcher catcher(rank, kRanks);
    catcher.on_issue = [&](const Request& request) {
      const ExchangePlan plan = MakeExchangePlan(request, rank, kRanks, {});
      for (int64_t chain = 0; chain < plan.num_chains; ++chain)
        for (const Round& round : plan.make_chain(chain)) num_messages += std::ssize(round.sends);
    };
    GatherBytes(catcher, "vote", {"vote", 0});
    BroadcastBytes(catcher, "verdict", 0, {"vote", 0});
  }
  EXPECT_EQ(num_messages, 4 * (kRanks - 1));
}

TEST(ExchangePlan, NeverExceedsThePieceOfAMessage) {
  // The 3 GiB are never accessed. Only the plan's 64-bit arithmetic is tested.
  constexpr int64_t kCount = int64_t{3} << 30;
  const Request request = {.kind = OpKind::kSendRecv,
                           .tag = {"large", 0},
                           .in = {nullptr, kCount, DType::kU8, {}},
                           .out = {nullptr, kCount, DType::kU8, {}},
                           .to = 1,
                           .from = 1};
  const ExchangePlan plan = MakeExchangePlan(request, 0, 2, {});
  ASSERT_EQ(plan.num_chains, 12);
  int64_t total = 0;
  for (int64_t chain = 0; chain < plan.num_chains; ++chain) {
    const Message message = plan.make_chain(chain)[0].sends[0];
    EXPECT_EQ(message.bytes, int64_t{256} << 20);
    total += message.bytes;
  }
  EXPECT_EQ(total, kCount);
}

}  // namespace
}  // namespace halflife::dist
