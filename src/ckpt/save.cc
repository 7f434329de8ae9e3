// CheckpointStore::Save: the phases of a commit, each ended by one outcome for all ranks.
//
//   P0 open      rank 0   owner, free space (if short, retention), folder .tmp_step_N.<attempt>
//   P1 data      all      write and fsync own shard
//   P2 vote      all      any failure, or a rank that is late by timeout_s, cancels
//   P3 seal      rank 0   coverage, manifest, fsync
//   P4 publish   rank 0   rename to step_N, fsync ckpt/: the commit
//   P5 pointer   rank 0   LATEST
//   P6 announce  all      read back a sample of the own file, then retention
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "ckpt/collective.h"
#include "ckpt/damage.h"
#include "ckpt/shard_writer.h"
#include "ckpt/step_dir.h"
#include "ckpt/step_files.h"
#include "ckpt/store.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/files.h"
#include "core/host.h"
#include "core/human.h"
#include "core/log.h"

namespace halflife::ckpt {
namespace {

namespace fs = std::filesystem;

// A rank's report after it has written its shard. All ranks run the same program, so it travels
// as its bytes. Everything else about the file follows from the layout.
struct Vote {
  double seconds = 0;  // that it took
  uint64_t bytes = 0, data_offset = 0;
  Hash128 attempt;  // the hash of its name
  Hash128 hash, header_hash, table_hash;
};

std::string Encode(const Vote& vote) {
  return std::string(reinterpret_cast<const char*>(&vote), sizeof vote);
}

Vote DecodeVote(const std::string& text) {
  Vote vote;
  HL_CHECK(text.size() == sizeof vote, "a vote of ", text.size(), " bytes");
  std::memcpy(&vote, text.data(), sizeof vote);
  return vote;
}

std::string LateText(double timeout_s) {
  return Concat("not all ranks had written their shard within ", timeout_s, " s (ckpt.timeout_s)");
}

// The state of one Save. CheckpointStore::Save calls its phases in order.
class SaveSession {
 public:
  SaveSession(const fs::path& dir, dist::Communicator& control, const StoreConfig& config,
              const std::function<void()>& check_owner, const ArenaView& arena,
              const StepState& state)
      : dir_(dir),
        control_(control),
        config_(config),
        check_owner_(check_owner),
        arena_(arena),
        state_(state),
        final_path_(dir / StepName(state.step)) {}

  void Open();
  void WriteAndVote(const std::vector<std::string>& hosts);
  void SealAndPublish();
  void SampleBack();
  void Retain() const;

  uint64_t bytes() const { return total_bytes_; }
  const fs::path& path() const { return final_path_; }

 private:
  std::string OpenAttempt() const;
  void WriteOwnPart(Vote* vote);
  void CheckInTime(const std::vector<Vote>& votes) const;
  void Assemble(const std::vector<Vote>& votes, const std::vector<std::string>& hosts);
  void MakeWay();
  void PutBack() const noexcept;
  void CancelAttempt() const noexcept;
  void CheckOwnSample() const;
  void WithdrawStep() const noexcept;
  void CheckOwner() const {
    if (check_owner_) check_owner_();
  }

  const fs::path& dir_;
  dist::Communicator& control_;
  const StoreConfig& config_;
  const std::function<void()>& check_owner_;
  const ArenaView& arena_;
  const StepState& state_;
  const fs::path final_path_;
  std::string attempt_;
  fs::path temporary_;
  fs::path replaced_;  // the earlier step of this number, in the trash; on rank 0
  Manifest own_part_;
  Manifest manifest_;  // of the whole step; on rank 0
  std::string hash_;   // of the bytes of manifest.pb
  uint64_t total_bytes_ = 0;
};

// --- P0 ---

void SaveSession::Open() {
  attempt_ = OnRankZero(control_, {"ckpt_open", 0}, [&] { return OpenAttempt(); });
  temporary_ = dir_ / TemporaryName(state_.step, attempt_);
}

std::string SaveSession::OpenAttempt() const {
  CheckOwner();
  std::error_code error;
  fs::create_directories(dir_, error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot create ", dir_.string(), ": ",
              error.message());
  EmptyTrash(dir_);  // of cancelled attempts: frees their space before it is asked for
  const auto needed =
      static_cast<uint64_t>(arena_.layout->num_parameters()) * sizeof(float) * arena_.arrays.size();
  const uint64_t wanted = needed + needed / 10;
  uint64_t free = FreeBytes(dir_, ExitCode::kCheckpointIo);
  if (free < wanted) {  // The run may keep fewer steps than when it saved the last one.
    Retain();
    free = FreeBytes(dir_, ExitCode::kCheckpointIo);
  }
  const bool could_keep_fewer = config_.retention.keep_last > 2 && ListPublished(dir_).size() > 2;
  HL_CHECK_AS(ExitCode::kCheckpointIo, free >= wanted, "step ", state_.step, " needs ",
              HumanBytes(wanted), " in ", dir_.string(), ", ", HumanBytes(free), " are free (",
              std::strerror(ENOSPC), "). Free space",
              could_keep_fewer ? ", or use a smaller ckpt.keep_last" : "");
  const std::string attempt = RandomHex(8);
  const fs::path temporary = dir_ / TemporaryName(state_.step, attempt);
  fs::create_directory(temporary, error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  FsyncDirectory(dir_, ExitCode::kCheckpointIo);
  return attempt;
}

// --- P1, P2 ---

void SaveSession::WriteAndVote(const std::vector<std::string>& hosts) {
  // This runs outside of the vote, to distinguish a late rank from a failed one.
  const Stopwatch stopwatch;
  Vote own;
  std::exception_ptr failure;
  try {
    WriteOwnPart(&own);
  } catch (...) {
    failure = std::current_exception();
  }
  own.seconds = stopwatch.Seconds();
  Patience patience(control_, config_.timeout_s, LateText(config_.timeout_s));
  try {
    OnEveryRank(
        control_, {"ckpt_written", 0},
        [&] {
          if (failure) std::rethrow_exception(failure);
          HL_FAULT_POINT("ckpt.p2.vote", ExitCode::kCheckpointIo);
          return Encode(own);
        },
        [&](const std::vector<std::string>& texts) {
          std::vector<Vote> votes;
          for (const std::string& text : texts) votes.push_back(DecodeVote(text));
          CheckInTime(votes);
          Assemble(votes, hosts);
          return std::string();
        },
        [&](dist::Work& work) { patience.Wait(work); });
  } catch (...) {
    if (control_.rank() == 0) CancelAttempt();
    throw;
  }
}

void SaveSession::WriteOwnPart(Vote* vote) {
  const int rank = control_.rank();
  own_part_ = WriteShard(temporary_, PlanShard(arena_, rank),
                         {.step = state_.step, .rank = rank, .attempt = attempt_});
  const FileEntry& file = own_part_.files[0];
  vote->bytes = file.bytes;
  vote->data_offset = file.data_offset;
  vote->attempt = HashBytes(attempt_);
  vote->hash = file.hash;
  vote->header_hash = file.header_hash;
  vote->table_hash = file.table_hash;
}

// Fails the save if a rank took more than timeout_s longer than the fastest one. All ranks begin to
// write at the same time, so their durations can be compared.
void SaveSession::CheckInTime(const std::vector<Vote>& votes) const {
  const double fastest = std::ranges::min(votes, {}, &Vote::seconds).seconds;
  const auto slowest = std::ranges::max_element(votes, {}, &Vote::seconds);
  HL_CHECK_AS(ExitCode::kCheckpointIo, slowest->seconds - fastest <= config_.timeout_s,
              LateText(config_.timeout_s), ": rank ",
              control_.WorldRank(static_cast<int>(slowest - votes.begin())), " took ",
              Fixed(slowest->seconds, 1), " s, the fastest rank ", Fixed(fastest, 1),
              " s; nothing was published");
}

void SaveSession::Assemble(const std::vector<Vote>& votes, const std::vector<std::string>& hosts) {
  manifest_.state = state_;
  manifest_.attempt = attempt_;
  manifest_.unix_ms = UnixMilliseconds();
  manifest_.tensors = TensorEntries(*arena_.layout);
  std::vector<std::string> arrays;
  for (const ArenaArray& array : arena_.arrays) arrays.push_back(array.name);
  manifest_.arrays = ArrayEntries(*arena_.layout, arrays);
  std::vector<FileEntry> files;
  for (const Vote& vote : votes) {
    const int rank = static_cast<int>(files.size());
    HL_CHECK(vote.attempt == HashBytes(attempt_), "vote of rank ", rank,
             " belongs to another save");
    files.push_back({.name = ShardName(rank),
                     .rank = rank,
                     .bytes = vote.bytes,
                     .data_offset = vote.data_offset,
                     .hash = vote.hash,
                     .header_hash = vote.header_hash,
                     .slice = rank,
                     .table_hash = vote.table_hash});
  }
  SetFiles(std::move(files), *arena_.layout, &manifest_);
  const std::set<std::string> distinct(hosts.begin(), hosts.end());
  manifest_.hosts.assign(distinct.begin(), distinct.end());
  manifest_.state.mesh.nodes = static_cast<int>(distinct.size());
}

// Best effort: an attempt that remains is found and removed by the next holder of the run folder.
void SaveSession::CancelAttempt() const noexcept {
  try {
    if (fs::exists(temporary_)) MoveToTrash(dir_, temporary_);
  } catch (const std::exception& error) {
    HL_WARN("ckpt", "could not move the cancelled attempt away: ", error.what());
  }
}

// --- P3, P4, P5 ---

void SaveSession::SealAndPublish() {
  const std::string published = OnRankZero(control_, {"ckpt_commit", 0}, [&] {
    try {
      CheckCoverage(manifest_, "the step being saved");
      HL_FAULT_POINT("ckpt.p3.manifest", ExitCode::kCheckpointIo);
      const std::string bytes = WriteManifestFiles(manifest_, temporary_);
      CheckOwner();
      MakeWay();
      HL_FAULT_POINT("ckpt.p4.rename", ExitCode::kCheckpointIo);
      PublishDirectory(temporary_, final_path_, ExitCode::kCheckpointIo);
      HL_FAULT_POINT("ckpt.p5.latest", ExitCode::kCheckpointIo);
      WriteLatest(dir_, final_path_.filename().string(), HashBytes(bytes));
      return Concat(ToHex(HashBytes(bytes)), manifest_.total_bytes);
    } catch (const Error& error) {
      std::error_code ignored;
      const bool renamed = !fs::exists(temporary_, ignored);
      CancelAttempt();
      if (!renamed) {
        PutBack();
        throw;
      }
      throw Error(error.code(), error.place(),
                  Concat("step ", state_.step, " is visible but unconfirmed, no older step is ",
                         "deleted: ", error.message()));
    }
  });
  constexpr size_t kHexDigits = 32;
  hash_ = published.substr(0, kHexDigits);
  total_bytes_ = std::stoull(published.substr(kHexDigits));
}

// Removes the steps that this one replaces before it is published. After a crash in between, the
// run resumes from an older step of this branch, never from a step of the abandoned branch. Newer
// steps exist here only if nothing was loaded, because a load renames them.
void SaveSession::MakeWay() {
  SetNewerAside(dir_, state_.step);
  for (const StepDir& step : ListPublished(dir_)) {
    if (step.step != state_.step) continue;
    if (IsPinned(step.path)) Pin(temporary_);
    replaced_ = MoveToTrash(dir_, step.path);
  }
}

// Publishes the replaced step again if the new one could not be published.
void SaveSession::PutBack() const noexcept {
  try {
    if (!replaced_.empty()) RestoreFromTrash(replaced_, final_path_);
  } catch (const std::exception& error) {
    HL_ERROR("ckpt", "could not rename ", replaced_.string(), " to ", final_path_.string(),
             ". Do it by hand before the run continues: ", error.what());
  }
}

// --- P6 ---

void SaveSession::SampleBack() {
  try {
    OnEveryRank(control_, {"ckpt_sample_back", 0}, [&] {
      CheckOwnSample();
      return std::string();
    });
  } catch (const DamageError& error) {
    if (control_.rank() == 0) WithdrawStep();
    HL_FAIL(ExitCode::kCheckpointIo, "step ", state_.step,
            " was written, but does not read back as written: ", error.message(),
            "; it was renamed to .bad");
  }
}

// Verifies the header, one random block and the last block of this rank's file, read from the disk
// and not from memory.
void SaveSession::CheckOwnSample() const {
  if (control_.rank() == 0) {
    CheckDamage(ToHex(HashBytes(ReadManifestBytes(final_path_))) == hash_, kManifestName,
                ": hash mismatch");
  }
  const StepFiles files(final_path_, own_part_);
  files.ForgetCached(0);
  files.CheckHeader(0);
  std::vector<std::pair<FileFragment, uint64_t>> blocks;
  for (const FileFragment& fragment : FragmentsOfFile(own_part_, 0)) {
    const uint64_t count = fragment.fragment->block_hashes.size();
    for (uint64_t block = 0; block < count; ++block) blocks.emplace_back(fragment, block);
  }
  if (blocks.empty()) return;
  const auto buffer = std::make_unique_for_overwrite<char[]>(kBlockBytes);
  for (const size_t i :
       {static_cast<size_t>(std::random_device()() % blocks.size()), blocks.size() - 1}) {
    const auto& [at, block] = blocks[i];
    files.ReadBlock(*at.tensor, *at.fragment, block, buffer.get());
  }
}

void SaveSession::WithdrawStep() const noexcept {
  try {
    SetAside(final_path_, "bad");
    PutBack();
    fs::remove(dir_ / "LATEST");  // only a hint: the next load or save writes it again
  } catch (const std::exception& error) {
    HL_ERROR("ckpt", "could not rename ", final_path_.string(), " to .bad: ", error.what());
  }
}

void SaveSession::Retain() const {
  if (control_.rank() != 0) return;
  try {
    ApplyRetention(dir_, PlanRetention(dir_, config_.retention));
  } catch (const Error& error) {
    HL_WARN("ckpt", "old steps were not deleted: ", error.what());
  }
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path ckpt_dir, dist::Communicator& control,
                                 const StoreConfig& config)
    : dir_(std::move(ckpt_dir)), control_(control), config_(config) {
  HL_CHECK_AS(ExitCode::kUsage, config.retention.keep_last >= 2, "ckpt.keep_last is ",
              config.retention.keep_last,
              "; at least 2 steps are kept, so that a damaged one has a predecessor");
}

// They do not change while the program runs, so they are gathered once.
const std::vector<std::string>& CheckpointStore::Hosts() {
  if (!std::exchange(knows_hosts_, true))
    hosts_ = dist::GatherBytes(control_, HostName(), {"ckpt_hosts", 0});
  return hosts_;
}

SaveReport CheckpointStore::Save(const ArenaView& arena, const StepState& state) {
  HL_CHECK(arena.layout->num_slices() == control_.size(), "the arena has ",
           arena.layout->num_slices(), " slices for ", control_.size(), " ranks");
  HL_CHECK(!arena.arrays.empty() && arena.arrays[0].name == kMainArray,
           "the first array of an arena is main");
  const Stopwatch stopwatch;
  SaveSession session(dir_, control_, config_, ownership_check_, arena, state);
  session.Open();
  session.WriteAndVote(Hosts());
  session.SealAndPublish();
  session.SampleBack();
  const double durable_seconds = stopwatch.Seconds();
  session.Retain();
  Arrive(control_, {"ckpt_retained", 0}, kRankZeroSeconds);
  return {session.bytes(), stopwatch.Seconds(), durable_seconds, session.path()};
}

}  // namespace halflife::ckpt
