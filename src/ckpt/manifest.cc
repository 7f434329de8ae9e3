#include "ckpt/manifest.h"

#include <google/protobuf/text_format.h>
#include <halflife/checkpoint.pb.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "ckpt/damage.h"
#include "ckpt/stored_layout.h"
#include "core/files.h"
#include "core/philox.h"

namespace halflife::ckpt {
namespace {

namespace pb = ::halflife::proto::checkpoint;
using internal::ErrnoText;

constexpr std::string_view kMagic("HLCKPT\x01\n", 8);
constexpr size_t kFrameBytes = 8 + 8 + 16;  // magic, payload length, hash
constexpr char kRngAlgorithm[] = "philox4x32-10";

// --- Plain types to protobuf ---

void Put(Hash128 from, pb::Hash128* to) {
  to->set_hi(from.hi);
  to->set_lo(from.lo);
}

pb::DType ToProto(StoredDType dtype) { return static_cast<pb::DType>(static_cast<int>(dtype) + 1); }

uint32_t IndexOf(const std::string& array, const std::vector<ArrayEntry>& arrays) {
  const auto found = std::ranges::find(arrays, array, &ArrayEntry::name);
  HL_CHECK(found != arrays.end(), "the manifest does not list the array '", array, "'");
  return static_cast<uint32_t>(found - arrays.begin());
}

void Put(const StoredBucket& from, pb::Bucket* to) {
  to->set_end(static_cast<uint64_t>(from.end));
  to->mutable_tensors()->Assign(from.tensors.begin(), from.tensors.end());
  to->mutable_offsets()->Assign(from.offsets.begin(), from.offsets.end());
}

void Put(const TensorEntry& from, const std::vector<ArrayEntry>& arrays, bool lists_fragments,
         pb::TensorEntry* to) {
  to->set_name(from.name);
  for (const int64_t dim : from.shape) to->add_shape(static_cast<uint64_t>(dim));
  for (const std::string& alias : from.aliases) to->add_aliases(alias);
  to->set_decay_group(from.weight_decay ? "decay" : "no_decay");
  to->set_fp32_region(from.fp32_region);
  to->set_frozen(from.frozen);
  if (!lists_fragments) return;
  for (const StoredFragment& fragment : from.fragments) {
    pb::Fragment* out = to->add_fragments();
    out->set_array(IndexOf(fragment.array, arrays));
    out->set_begin(static_cast<uint64_t>(fragment.begin));
    out->set_end(static_cast<uint64_t>(fragment.end));
    out->set_file(static_cast<uint32_t>(fragment.file));
    out->set_offset(fragment.offset);
    for (const Hash128 hash : fragment.block_hashes) Put(hash, out->add_block_hashes());
  }
}

void Put(const FileEntry& from, pb::File* to) {
  to->set_name(from.name);
  to->set_rank(static_cast<uint32_t>(from.rank));
  to->set_bytes(from.bytes);
  to->set_data_offset(from.data_offset);
  Put(from.hash, to->mutable_hash());
  Put(from.header_hash, to->mutable_header_hash());
  if (from.slice < 0) return;
  to->set_slice(static_cast<uint32_t>(from.slice));
  Put(from.table_hash, to->mutable_table_hash());
}

void Put(const DataCursor& from, pb::DataCursor* to) {
  to->set_order_version(from.order_version);
  to->set_seed(from.seed);
  to->set_epoch(from.epoch);
  to->set_next_sample(from.next_sample);
  to->set_samples(from.samples);
  to->set_tokens(from.tokens);
  to->set_seq_len(from.seq_len);
  Put(from.dataset, to->mutable_dataset());
  to->mutable_classes()->Assign(from.classes.begin(), from.classes.end());
  for (const BlendCounter& counter : from.blend) {
    pb::BlendCounter* out = to->add_blend();
    out->set_corpus(counter.corpus);
    out->set_drawn(counter.drawn);
    out->set_weight(counter.weight);
    Put(counter.dataset, out->mutable_dataset());
  }
  for (const BlendSegment& segment : from.segments) {
    pb::BlendSegment* out = to->add_segments();
    out->set_first_sample(segment.first_sample);
    out->mutable_counts()->Assign(segment.counts.begin(), segment.counts.end());
    out->mutable_base()->Assign(segment.base.begin(), segment.base.end());
  }
}

void Put(const MeshInfo& from, pb::MeshInfo* to) {
  to->set_world(static_cast<uint32_t>(from.world));
  to->set_dp(static_cast<uint32_t>(from.dp));
  to->set_sp(static_cast<uint32_t>(from.sp));
  to->set_zero_stage(static_cast<uint32_t>(from.zero_stage));
  to->set_shard(static_cast<uint32_t>(from.shard));
  to->set_nodes(static_cast<uint32_t>(from.nodes));
  to->set_layout(pb::FLAT);
}

void Put(const Versions& from, pb::Versions* to) {
  to->set_git_hash(from.git_hash);
  to->set_git_dirty(from.git_dirty);
  to->set_halflife(from.halflife);
  to->set_torch(from.torch);
  to->set_cuda(from.cuda);
  to->set_nccl(from.nccl);
  to->set_mpi(from.mpi);
  to->set_hdf5(from.hdf5);
  to->set_compiler(__VERSION__);
  to->set_protobuf(Concat(GOOGLE_PROTOBUF_VERSION / 1000000, ".",
                          GOOGLE_PROTOBUF_VERSION / 1000 % 1000, ".",
                          GOOGLE_PROTOBUF_VERSION % 1000));
}

Hash128 TrajectoryHash(const std::map<std::string, std::string>& trajectory) {
  StreamHash hash;
  for (const auto& [key, value] : trajectory) {
    // with the final zero: "a" "bc" differs from "ab" "c"
    hash.Update(key.c_str(), key.size() + 1);
    hash.Update(value.c_str(), value.size() + 1);
  }
  return hash.Digest();
}

void Put(const StepState& from, pb::Manifest* to) {
  to->set_step(from.step);
  to->set_run_id(from.run_id);
  to->set_parent_step(from.parent_step);
  to->set_run_config_text(from.run_config_text);
  Put(TrajectoryHash(from.trajectory), to->mutable_trajectory_hash());
  to->mutable_trajectory()->insert(from.trajectory.begin(), from.trajectory.end());
  to->set_model_family(from.model_family);
  to->set_model_config_json(from.model_config_json);
  Put(from.mesh, to->mutable_mesh());
  Put(from.versions, to->mutable_versions());
  to->mutable_optimizer()->set_name(from.optimizer);
  to->mutable_optimizer()->set_num_updates(from.num_updates);
  to->mutable_scheduler()->set_step(from.step);
  to->mutable_scheduler()->set_last_lr(from.last_lr);
  Put(from.data, to->mutable_data());
  to->mutable_rng()->set_algorithm(kRngAlgorithm);
  to->mutable_rng()->set_version(kRandomVersion);
  to->mutable_rng()->set_seed(from.rng_seed);
  for (const double loss : from.guard.loss_window) to->mutable_guard()->add_loss_window(loss);
  to->mutable_guard()->set_consecutive_skips(from.guard.consecutive_skips);
  to->mutable_guard()->set_skipped(from.guard.skipped);
  to->mutable_guard()->mutable_spikes()->Assign(from.guard.spikes.begin(), from.guard.spikes.end());
  to->mutable_guard()->set_rollbacks(from.guard.rollbacks);
  to->mutable_metrics()->insert(from.metrics.begin(), from.metrics.end());
  to->set_final(from.final);
}

// --- Protobuf to plain types. Every value that later code relies on is checked here or in
// CheckCoverage ---

Hash128 Get(const pb::Hash128& from) { return {from.hi(), from.lo()}; }

class Decoder {
 public:
  explicit Decoder(const std::string& where) : where_(where) {}

  Manifest Decode(const pb::Manifest& from) const {
    CheckReadable(from);
    Manifest to;
    to.state = GetState(from);
    to.attempt = from.attempt();
    to.unix_ms = from.unix_ms();
    to.hosts.assign(from.hosts().begin(), from.hosts().end());
    to.total_bytes = from.total_bytes();
    for (const pb::File& file : from.files()) {
      to.files.push_back({file.name(), SmallInt(file.rank(), "file rank"), file.bytes(),
                          file.data_offset(), Get(file.hash()), Get(file.header_hash())});
      if (from.num_slices() == 0) continue;
      to.files.back().slice = SmallInt(file.slice(), "file slice");
      to.files.back().table_hash = Get(file.table_hash());
    }
    for (const pb::Array& array : from.arrays()) to.arrays.push_back(GetArray(array));
    for (const pb::TensorEntry& tensor : from.tensors())
      to.tensors.push_back(GetTensor(tensor, to.arrays));
    if (from.num_slices() > 0) GetBuckets(from, &to);
    return to;
  }

 private:
  void GetBuckets(const pb::Manifest& from, Manifest* to) const {
    to->num_slices = SmallInt(from.num_slices(), "number of slices");
    to->block_bytes = from.hash_block_bytes();
    CheckDamage(to->block_bytes >= 4096 && to->block_bytes <= kMaxBlockBytes &&
                    std::has_single_bit(to->block_bytes),
                where_, ": hashes cover blocks of ", to->block_bytes, " bytes");
    for (const pb::Bucket& bucket : from.buckets()) {
      StoredBucket& out = to->buckets.emplace_back();
      out.end = Size(bucket.end(), "bucket end");
      for (const uint32_t tensor : bucket.tensors())
        out.tensors.push_back(SmallInt(tensor, "tensor of a bucket"));
      for (const uint64_t offset : bucket.offsets())
        out.offsets.push_back(Size(offset, "tensor offset"));
    }
    DeriveFragments(to, where_);
  }

  template <typename... Pieces>
  void CheckKnown(bool known, const Pieces&... pieces) const {
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, known, where_, ": ", pieces...,
                "; it needs a newer halflife than this one");
  }

  void CheckReadable(const pb::Manifest& from) const {
    const std::string writer = from.versions().halflife().empty()
                                   ? ""
                                   : " (written by " + from.versions().halflife() + ")";
    CheckKnown(from.min_reader_version() <= kSchemaVersion, "needs a halflife that reads schema ",
               from.min_reader_version(), writer, ", this one reads up to ", kSchemaVersion);
    CheckDamage(from.schema_version() >= 1, where_, ": schema version 0");
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, from.schema_version() >= kOldestSchemaVersion,
                where_, ": the checkpoint has format version ", from.schema_version(), writer,
                ", and this program reads versions from ", kOldestSchemaVersion,
                " on. Continue the run with the program that wrote it, or train it again in "
                "another run folder.");
    for (const std::string& feature : from.required_features()) {
      CheckKnown(false, "uses the feature '", feature, "'", writer);
    }
    CheckKnown(pb::Layout_IsValid(from.mesh().layout()), "layout ",
               static_cast<int>(from.mesh().layout()), " is unknown");
    CheckKnown(from.rng().algorithm() == kRngAlgorithm && from.rng().version() <= kRandomVersion,
               "random numbers come from '", from.rng().algorithm(), "' version ",
               from.rng().version());
    CheckDamage(Get(from.trajectory_hash()) ==
                    TrajectoryHash({from.trajectory().begin(), from.trajectory().end()}),
                where_, ": the trajectory fields do not match their hash");
  }

  int SmallInt(uint64_t value, const char* what) const {
    CheckDamage(value <= 1u << 30, where_, ": ", what, " ", value);
    return static_cast<int>(value);
  }

  int64_t Size(uint64_t value, const std::string& what) const {
    CheckDamage(value <= INT64_MAX, where_, ": ", what, " ", value);
    return static_cast<int64_t>(value);
  }

  ArrayEntry GetArray(const pb::Array& from) const {
    CheckKnown(pb::DType_IsValid(from.dtype()) && from.dtype() != pb::DTYPE_UNSPECIFIED, "array '",
               from.name(), "' has dtype number ", static_cast<int>(from.dtype()));
    return {.name = from.name(),
            .dtype = static_cast<StoredDType>(from.dtype() - 1),
            .elements = Size(from.elements(), from.name() + " elements")};
  }

  TensorEntry GetTensor(const pb::TensorEntry& from, const std::vector<ArrayEntry>& arrays) const {
    TensorEntry to{.name = from.name(),
                   .aliases = {from.aliases().begin(), from.aliases().end()},
                   .weight_decay = from.decay_group() == "decay",
                   .fp32_region = from.fp32_region(),
                   .frozen = from.frozen()};
    for (const uint64_t dim : from.shape()) to.shape.push_back(Size(dim, from.name() + " size"));
    for (const pb::Fragment& fragment : from.fragments()) {
      CheckDamage(fragment.array() < arrays.size(), where_, ": tensor '", from.name(),
                  "' has a fragment of array ", fragment.array(), " of ", arrays.size());
      const ArrayEntry& array = arrays[fragment.array()];
      StoredFragment& out = to.fragments.emplace_back();
      out.array = array.name;
      out.dtype = array.dtype;
      out.begin = Size(fragment.begin(), from.name() + " fragment begin");
      out.end = Size(fragment.end(), from.name() + " fragment end");
      out.file = SmallInt(fragment.file(), "file index");
      out.offset = fragment.offset();
      for (const pb::Hash128& hash : fragment.block_hashes()) out.block_hashes.push_back(Get(hash));
    }
    return to;
  }

  static DataCursor GetCursor(const pb::DataCursor& from) {
    DataCursor to{.order_version = from.order_version(),
                  .seed = from.seed(),
                  .epoch = from.epoch(),
                  .next_sample = from.next_sample(),
                  .samples = from.samples(),
                  .tokens = from.tokens(),
                  .dataset = Get(from.dataset()),
                  .blend = {},
                  .seq_len = from.seq_len(),
                  .classes = {from.classes().begin(), from.classes().end()}};
    for (const pb::BlendCounter& counter : from.blend()) {
      to.blend.push_back(
          {counter.corpus(), counter.drawn(), counter.weight(), Get(counter.dataset())});
    }
    for (const pb::BlendSegment& segment : from.segments()) {
      to.segments.push_back({.first_sample = segment.first_sample(),
                             .counts = {segment.counts().begin(), segment.counts().end()},
                             .base = {segment.base().begin(), segment.base().end()}});
    }
    return to;
  }

  MeshInfo GetMesh(const pb::MeshInfo& from) const {
    return {.world = SmallInt(from.world(), "world size"),
            .dp = SmallInt(from.dp(), "dp"),
            .sp = SmallInt(from.sp(), "sp"),
            .zero_stage = SmallInt(from.zero_stage(), "zero stage"),
            .shard = SmallInt(from.shard(), "shard"),
            .nodes = SmallInt(from.nodes(), "nodes")};
  }

  static Versions GetVersions(const pb::Versions& from) {
    return {.git_hash = from.git_hash(),
            .git_dirty = from.git_dirty(),
            .halflife = from.halflife(),
            .torch = from.torch(),
            .cuda = from.cuda(),
            .nccl = from.nccl(),
            .mpi = from.mpi(),
            .hdf5 = from.hdf5(),
            .compiler = from.compiler(),
            .protobuf = from.protobuf()};
  }

  StepState GetState(const pb::Manifest& from) const {
    StepState to;
    to.step = from.step();
    to.num_updates = from.optimizer().num_updates();
    to.optimizer = from.optimizer().name();
    to.last_lr = from.scheduler().last_lr();
    to.data = GetCursor(from.data());
    to.guard = {{from.guard().loss_window().begin(), from.guard().loss_window().end()},
                from.guard().consecutive_skips(),
                from.guard().skipped(),
                {from.guard().spikes().begin(), from.guard().spikes().end()},
                from.guard().rollbacks()};
    to.rng_seed = from.rng().seed();
    to.run_id = from.run_id();
    to.run_config_text = from.run_config_text();
    to.trajectory = {from.trajectory().begin(), from.trajectory().end()};
    to.model_family = from.model_family();
    to.model_config_json = from.model_config_json();
    to.mesh = GetMesh(from.mesh());
    to.versions = GetVersions(from.versions());
    to.metrics = {from.metrics().begin(), from.metrics().end()};
    to.parent_step = from.parent_step();
    to.final = from.final();
    return to;
  }

  const std::string& where_;
};

void AppendWord(uint64_t word, std::string* to) {
  to->append(reinterpret_cast<const char*>(&word), sizeof word);
}

uint64_t WordAt(std::string_view bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

// Returns the payload after checking length and hash. They are checked first because protobuf
// accepts a message that was cut between two fields.
std::string_view CheckedPayload(std::string_view bytes, const std::string& where) {
  CheckDamage(!bytes.starts_with("HLDATA"), where,
              " describes a dataset. Use the folder of a run or of one of its steps");
  CheckDamage(bytes.size() >= kFrameBytes && bytes.substr(0, 8) == kMagic, where,
              ": not a checkpoint manifest (", bytes.size(), " bytes, magic not found)");
  const uint64_t length = WordAt(bytes, 8);
  CheckDamage(length == bytes.size() - kFrameBytes, where, ": ", bytes.size(),
              " bytes where its length field asks for ", length, " and ", kFrameBytes,
              " of framing; it was cut or extended");
  const std::string_view hashed = bytes.substr(0, bytes.size() - 16);
  const Hash128 stored{WordAt(bytes, hashed.size()), WordAt(bytes, hashed.size() + 8)};
  CheckDamage(HashBytes(hashed) == stored, where, ": hash mismatch");
  return bytes.substr(16, length);
}

pb::Manifest ParsePayload(std::string_view bytes, const std::string& where) {
  const std::string_view payload = CheckedPayload(bytes, where);
  pb::Manifest message;
  CheckDamage(payload.size() <= kMaxManifestBytes &&
                  message.ParseFromArray(payload.data(), static_cast<int>(payload.size())),
              where, ": the payload is not a manifest");
  return message;
}

}  // namespace

bool TensorEntry::has(std::string_view array) const {
  return std::ranges::find(fragments, array, &StoredFragment::array) != fragments.end();
}

const TensorEntry* Manifest::Find(const std::string& name) const {
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

const ArrayEntry* Manifest::FindArray(std::string_view name) const {
  const auto found = std::ranges::find(arrays, name, &ArrayEntry::name);
  return found == arrays.end() ? nullptr : &*found;
}

std::vector<std::string> Manifest::array_names() const {
  std::vector<std::string> names;
  for (const ArrayEntry& array : arrays) names.push_back(array.name);
  return names;
}

std::string EncodeManifest(const Manifest& manifest) {
  pb::Manifest message;
  const bool lists_fragments = manifest.num_slices == 0;
  const uint32_t schema = lists_fragments ? kOldestSchemaVersion : kSchemaVersion;
  message.set_schema_version(schema);
  message.set_min_reader_version(schema);
  message.set_attempt(manifest.attempt);
  message.set_unix_ms(manifest.unix_ms);
  message.set_total_bytes(manifest.total_bytes);
  for (const std::string& host : manifest.hosts) message.add_hosts(host);
  for (const FileEntry& file : manifest.files) Put(file, message.add_files());
  for (const ArrayEntry& array : manifest.arrays) {
    pb::Array* const out = message.add_arrays();
    out->set_name(array.name);
    out->set_dtype(ToProto(array.dtype));
    out->set_elements(static_cast<uint64_t>(array.elements));
  }
  for (const TensorEntry& tensor : manifest.tensors)
    Put(tensor, manifest.arrays, lists_fragments, message.add_tensors());
  for (const StoredBucket& bucket : manifest.buckets) Put(bucket, message.add_buckets());
  if (!lists_fragments) {
    message.set_num_slices(static_cast<uint32_t>(manifest.num_slices));
    message.set_hash_block_bytes(static_cast<uint32_t>(manifest.block_bytes));
  }
  Put(manifest.state, &message);

  const std::string payload = message.SerializeAsString();
  HL_CHECK(payload.size() <= kMaxManifestBytes, "manifest of ", payload.size(), " bytes");
  // Protobuf writes text that it then refuses to read.
  HL_CHECK(message.ParseFromString(payload), "a text field of the manifest is not UTF-8");
  std::string bytes(kMagic);
  AppendWord(payload.size(), &bytes);
  bytes += payload;
  const Hash128 hash = HashBytes(bytes);
  AppendWord(hash.hi, &bytes);
  AppendWord(hash.lo, &bytes);
  return bytes;
}

Manifest DecodeManifest(std::string_view bytes, const std::string& where) {
  return Decoder(where).Decode(ParsePayload(bytes, where));
}

std::string ManifestText(std::string_view bytes) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(ParsePayload(bytes, kManifestName), &text);
  return text;
}

std::string ReadManifestBytes(const std::filesystem::path& step_dir) {
  const std::filesystem::path path = step_dir / kManifestName;
  struct stat info {};
  const int result = ::stat(path.c_str(), &info);
  CheckDamage(result == 0 || errno != ENOENT, path.string(), ": missing");
  HL_CHECK_AS(ExitCode::kCheckpointIo, result == 0, "cannot read ", path.string(), ": ",
              ErrnoText(errno));
  CheckDamage(S_ISREG(info.st_mode) &&
                  static_cast<uint64_t>(info.st_size) <= kMaxManifestBytes + kFrameBytes,
              path.string(), ": not a file of at most 1 GiB");
  return ReadFile(path, ExitCode::kCheckpointIo, kMaxManifestBytes + kFrameBytes);
}

}  // namespace halflife::ckpt
