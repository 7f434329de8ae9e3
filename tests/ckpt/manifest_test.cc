// The manifest: round trips, framing, versions, exact coverage, and ten thousand damaged variants.
#include "ckpt/manifest.h"

#include <gtest/gtest.h>
#include <halflife/checkpoint.pb.h>

#include <functional>
#include <random>

#include "ckpt/ckpt_fixture.h"
#include "ckpt/damage.h"
#include "ckpt/shard_writer.h"
#include "ckpt/stored_layout.h"
#include "support/expect_error.h"
#include "support/mutate.h"

namespace halflife::ckpt::test {
namespace {

namespace pb = ::halflife::proto::checkpoint;

// Returns a manifest of two tensors in two files with headers of 4096 bytes: a [6] = 24 bytes, b
// [2, 4] = 32 bytes, split in the middle of b.
Manifest GoodManifest() {
  Manifest manifest;
  manifest.state = MakeState(9);
  manifest.attempt = "0123abcd";
  manifest.hosts = {"node1", "node2"};
  manifest.files = {{"rank_00000.safetensors", 0, 4096 + 40, 4096, {1, 2}, {3, 4}},
                    {"rank_00001.safetensors", 1, 4096 + 16, 4096, {5, 6}, {7, 8}}};
  manifest.total_bytes = 2 * 4096 + 56;
  manifest.arrays = {{.name = kMainArray, .elements = 14}};
  manifest.tensors = {
      {.name = "a",
       .shape = {6},
       .aliases = {"tied"},
       .weight_decay = true,
       .fragments = {{kMainArray, 0, 6, 0, 0, {{1, 1}}}}},
      {.name = "b",
       .shape = {2, 4},
       .fp32_region = true,
       .fragments = {{kMainArray, 0, 4, 0, 24, {{2, 2}}}, {kMainArray, 4, 8, 1, 0, {{3, 3}}}}}};
  return manifest;
}

// Applies `change` to the message and frames the result with a valid hash.
std::string Reframed(const std::string& bytes, const std::function<void(pb::Manifest*)>& change) {
  pb::Manifest message;
  EXPECT_TRUE(message.ParseFromString(bytes.substr(16, bytes.size() - 32)));
  change(&message);
  const std::string payload = message.SerializeAsString();
  const uint64_t length = payload.size();
  std::string framed = bytes.substr(0, 8);
  framed.append(reinterpret_cast<const char*>(&length), 8);
  framed.append(payload);
  const Hash128 hash = HashBytes(framed);
  framed.append(reinterpret_cast<const char*>(&hash.hi), 8);
  framed.append(reinterpret_cast<const char*>(&hash.lo), 8);
  return framed;
}

Manifest DecodeChanged(const std::function<void(pb::Manifest*)>& change) {
  return DecodeManifest(Reframed(EncodeManifest(GoodManifest()), change), "manifest.pb");
}

TEST(ManifestTest, RoundTrip) {
  const Manifest manifest = GoodManifest();
  const std::string bytes = EncodeManifest(manifest);
  const Manifest again = DecodeManifest(bytes, "manifest.pb");
  CheckCoverage(again, "manifest.pb");
  EXPECT_EQ(again.hosts, manifest.hosts);
  EXPECT_EQ(again.attempt, manifest.attempt);
  ASSERT_EQ(again.files.size(), 2u);
  EXPECT_EQ(again.files[1].header_hash, (Hash128{7, 8}));
  ASSERT_EQ(again.arrays.size(), 1u);
  EXPECT_EQ(again.arrays[0].elements, 14);
  EXPECT_EQ(again.state.optimizer, "adamw");
  ASSERT_EQ(again.tensors.size(), 2u);
  EXPECT_TRUE(again.tensors[0].weight_decay);
  EXPECT_EQ(again.tensors[0].aliases, std::vector<std::string>{"tied"});
  EXPECT_TRUE(again.tensors[1].fp32_region);
  EXPECT_EQ(again.tensors[1].fragments[1].block_hashes[0], (Hash128{3, 3}));
  EXPECT_EQ(again.state.step, 9u);
  // protobuf maps have no order, so equal messages may have different bytes. Their texts are
  // sorted.
  EXPECT_EQ(ManifestText(EncodeManifest(again)), ManifestText(bytes));
}

TEST(ManifestTest, AFragmentOfAnArrayThatIsNotListedIsDamage) {
  EXPECT_HL_ERROR(DecodeChanged([](pb::Manifest* m) {
                    m->mutable_tensors(1)->mutable_fragments(0)->set_array(1);
                  }),
                  ExitCode::kNoUsableCheckpoint, "tensor 'b' has a fragment of array 1 of 1");
}

TEST(ManifestTest, TextThatCouldNotBeReadBackIsNotWritten) {
  google::protobuf::SetLogHandler(nullptr);
  Manifest manifest = GoodManifest();
  manifest.state.run_config_text = "path: '\xff'";
  EXPECT_HL_ERROR(EncodeManifest(manifest), ExitCode::kInternal, "not UTF-8");
}

TEST(ManifestTest, EveryCutAndExtensionIsNoticed) {
  const std::string bytes = EncodeManifest(GoodManifest());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(DecodeManifest(bytes.substr(0, size), "m"), DamageError) << size;
  }
  EXPECT_THROW(DecodeManifest(bytes + '\0', "m"), DamageError);
}

TEST(ManifestTest, TheFutureIsRefusedByName) {
  EXPECT_HL_ERROR(
      DecodeChanged([](pb::Manifest* m) { m->set_min_reader_version(4); }),
      ExitCode::kNoUsableCheckpoint,
      "needs a halflife that reads schema 4 (written by 0.1.0), this one reads up to 3");
  EXPECT_HL_ERROR(DecodeChanged([](pb::Manifest* m) { m->add_required_features("holes"); }),
                  ExitCode::kNoUsableCheckpoint, "uses the feature 'holes'", "newer halflife");
  EXPECT_HL_ERROR(DecodeChanged([](pb::Manifest* m) {
                    m->mutable_arrays(0)->set_dtype(static_cast<pb::DType>(17));
                  }),
                  ExitCode::kNoUsableCheckpoint, "array 'main' has dtype number 17");
  EXPECT_HL_ERROR(DecodeChanged([](pb::Manifest* m) {
                    m->mutable_mesh()->set_layout(static_cast<pb::Layout>(9));
                  }),
                  ExitCode::kNoUsableCheckpoint, "layout 9 is unknown");
  EXPECT_HL_ERROR(DecodeChanged([](pb::Manifest* m) { m->mutable_rng()->set_version(99); }),
                  ExitCode::kNoUsableCheckpoint, "random numbers come from", "version 99");
  // None of these is damage: a load must stop and not fall back.
  EXPECT_THROW(DecodeChanged([](pb::Manifest* m) { m->set_min_reader_version(4); }), Error);
  try {
    DecodeChanged([](pb::Manifest* m) { m->set_min_reader_version(4); });
  } catch (const DamageError&) {
    FAIL() << "a newer format was called damage";
  } catch (const Error&) {
  }
}

// Formats from before the first that is kept. Nothing is wrong with the step, so a load must stop
// and not fall back to an older one.
TEST(ManifestTest, AnOldFormatIsRefusedWithBothVersions) {
  const auto decode = [] {
    DecodeChanged([](pb::Manifest* m) {
      m->set_schema_version(1);
      m->set_min_reader_version(1);
    });
  };
  EXPECT_HL_ERROR(decode(), ExitCode::kNoUsableCheckpoint,
                  "manifest.pb: the checkpoint has format version 1 (written by 0.1.0), and this "
                  "program reads versions from 2 on. Continue the run with the program that wrote "
                  "it, or train it again");
  try {
    decode();
  } catch (const DamageError&) {
    FAIL() << "an old format was called damage";
  } catch (const Error&) {
  }
}

TEST(ManifestTest, AdditiveFieldsAreIgnored) {
  const std::string bytes = Reframed(EncodeManifest(GoodManifest()), [](pb::Manifest* m) {
    m->set_schema_version(7);  // Newer, but readable from version 2 on.
    m->GetReflection()->MutableUnknownFields(m)->AddVarint(50, 1);
  });
  CheckCoverage(DecodeManifest(bytes, "m"), "m");
}

// A reader derives from the buckets the same fragments that the writer's layout puts into each
// file.
TEST(DerivedManifestTest, FragmentsAreThoseOfTheLayout) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    for (const int num_slices : {1, 3, 8}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << num_slices << " slices");
      const Manifest written = DerivedManifest(RandomSpecs(seed), num_slices);
      const Manifest manifest = DecodeManifest(EncodeManifest(written), "m");
      CheckCoverage(manifest, "m");
      const dist::ParameterLayout layout(
          RandomSpecs(seed),
          {.first_bucket_bytes = 4096, .bucket_bytes = 1 << 20, .num_slices = num_slices});
      for (int slice = 0; slice < num_slices; ++slice) {
        const ShardPlan wanted = PlanShard(layout, manifest.array_names(), slice);
        const ShardPlan derived = PlanStoredSlice(manifest, slice);
        ASSERT_EQ(derived.pieces.size(), wanted.pieces.size());
        for (size_t i = 0; i < wanted.pieces.size(); ++i) {
          EXPECT_EQ(derived.pieces[i].array, wanted.pieces[i].array);
          EXPECT_EQ(derived.pieces[i].tensor, wanted.pieces[i].tensor);
          EXPECT_EQ(derived.pieces[i].begin, wanted.pieces[i].begin);
          EXPECT_EQ(derived.pieces[i].end, wanted.pieces[i].end);
        }
      }
    }
  }
}

TEST(DerivedManifestTest, EveryIncoherenceIsDamage) {
  const auto expect = [](const char* text, const std::function<void(pb::Manifest*)>& change) {
    SCOPED_TRACE(text);
    const std::string bytes = Reframed(EncodeManifest(DerivedManifest(SmallSpecs(), 2)), change);
    EXPECT_HL_ERROR(CheckCoverage(DecodeManifest(bytes, "m"), "m"), ExitCode::kNoUsableCheckpoint,
                    "m: ", text);
  };
  expect("a bucket ends at element",
         [](pb::Manifest* m) { m->mutable_buckets(0)->set_end(m->buckets(0).end() + 1); });
  expect("does not fit in its bucket",
         [](pb::Manifest* m) { m->mutable_buckets(0)->set_offsets(0, m->buckets(0).end()); });
  expect("is in 0 buckets", [](pb::Manifest* m) {
    m->mutable_buckets(0)->mutable_tensors()->RemoveLast();
    m->mutable_buckets(0)->mutable_offsets()->RemoveLast();
  });
  expect("a bucket has tensor 99 of 6",
         [](pb::Manifest* m) { m->mutable_buckets(0)->set_tensors(0, 99); });
  expect("2 files of 1 slices", [](pb::Manifest* m) { m->set_num_slices(1); });
  expect("file rank_00001.safetensors has slice 0 of 2",
         [](pb::Manifest* m) { m->mutable_files(1)->set_slice(0); });
  expect("hashes cover blocks of 3000 bytes",
         [](pb::Manifest* m) { m->set_hash_block_bytes(3000); });
  expect("the header of rank_00000.safetensors is not that of slice 0",
         [](pb::Manifest* m) { m->mutable_files(0)->mutable_header_hash()->set_lo(1); });
}

// The size of a manifest does not depend on fragments and blocks: 1.3B parameters on 1,024 ranks.
TEST(DerivedManifestTest, IsSmallForManyRanks) {
  std::vector<dist::ParamSpec> specs;
  for (int layer = 0; layer < 24; ++layer)
    for (int i = 0; i < 12; ++i)
      specs.push_back({.name = Concat("layers.", layer, ".attn.projection_", i, ".weight"),
                       .shape = {2048, 2048}});
  const Manifest manifest = DerivedManifest(specs, 1024);
  EXPECT_LT(EncodeManifest(manifest).size(), 500u << 10);
}

struct Incoherence {
  const char* text;  // Part of the error.
  std::function<void(Manifest*)> make;
};

TEST(CoverageTest, EveryIncoherenceIsNamed) {
  const Incoherence cases[] = {
      {"main/b elements [3, 4) are stored twice",
       [](Manifest* m) {
         m->tensors[1].fragments[1].begin = 3;
         m->files[1].bytes += 4;
         m->total_bytes += 4;
       }},
      {"main/b elements [4, 5) are not stored",
       [](Manifest* m) { m->tensors[1].fragments[1].begin = 5; }},
      {"main/b is stored up to 7 of 8 elements",
       [](Manifest* m) { m->tensors[1].fragments[1].end = 7; }},
      {"main/b is stored up to 9 of 8 elements",
       [](Manifest* m) { m->tensors[1].fragments[1].end = 9; }},
      {"main/b elements [0, 4) are not stored",
       [](Manifest* m) { m->tensors[1].fragments.erase(m->tensors[1].fragments.begin()); }},
      {"tensor 'a' is not stored", [](Manifest* m) { m->tensors[0].fragments.clear(); }},
      {"tensor 'a' has no main weights",
       [](Manifest* m) {
         m->arrays.push_back({.name = "optim/m", .elements = 6});
         m->tensors[0].fragments[0].array = "optim/m";
       }},
      {"array 'main' has 15 elements, and its tensors have 14",
       [](Manifest* m) { m->arrays[0].elements = 15; }},
      {"tensor 'b' has parts of 1 of 2 arrays",
       [](Manifest* m) {
         m->arrays.push_back({.name = "optim/m", .elements = 14});
         m->tensors[0].fragments.push_back({"optim/m", 0, 6, 1, 16, {{9, 9}}});
       }},
      {"array 'main' is listed twice", [](Manifest* m) { m->arrays.push_back(m->arrays[0]); }},
      {"tensor 'a' lies in file 2 of 2", [](Manifest* m) { m->tensors[0].fragments[0].file = 2; }},
      {"tensor 'b' begins at byte 24 of rank_00000.safetensors where the data before it ends at 0",
       [](Manifest* m) { m->tensors[0].fragments[0].file = 1; }},
      {"tensor 'b' begins at byte 20 of rank_00000.safetensors where the data before it ends at 24",
       [](Manifest* m) { m->tensors[1].fragments[0].offset = 20; }},
      {"tensor 'b' begins at byte 28 of rank_00000.safetensors where the data before it ends at 24",
       [](Manifest* m) { m->tensors[1].fragments[0].offset = 28; }},
      {"fragments fill 16 of 20 data bytes of rank_00001.safetensors",
       [](Manifest* m) {
         m->files[1].bytes += 4;
         m->total_bytes += 4;
       }},
      {"main/a has 0 block hashes for 24 bytes",
       [](Manifest* m) { m->tensors[0].fragments[0].block_hashes.clear(); }},
      {"files of 8248 bytes, total says 8249", [](Manifest* m) { ++m->total_bytes; }},
      {"tensor 'a' is listed twice", [](Manifest* m) { m->tensors[1].name = m->tensors[0].name; }},
      {"alias 'b' is listed twice", [](Manifest* m) { m->tensors[1].aliases = {"b"}; }},
      {"file rank_00000.safetensors is listed twice",
       [](Manifest* m) { m->files[1].name = m->files[0].name; }},
      {"'../run.lock' is not a plain file name",
       [](Manifest* m) { m->files[0].name = "../run.lock"; }},
      {"its shape overflows",
       [](Manifest* m) {
         m->tensors[0].shape = {1ll << 40, 1ll << 40};
       }},
      {"is shorter than its header", [](Manifest* m) { m->files[0].data_offset = 1 << 20; }},
  };
  for (const Incoherence& incoherence : cases) {
    SCOPED_TRACE(incoherence.text);
    Manifest manifest = GoodManifest();
    incoherence.make(&manifest);
    EXPECT_HL_ERROR(CheckCoverage(manifest, "manifest.pb"), ExitCode::kNoUsableCheckpoint,
                    "manifest.pb: ", incoherence.text);
    // The same after encoding and decoding.
    const std::string bytes = EncodeManifest(manifest);
    EXPECT_THROW(CheckCoverage(DecodeManifest(bytes, "m"), "m"), DamageError);
  }
}

TEST(ManifestFuzzTest, NoMutationIsAccepted) {
  const std::string bytes = EncodeManifest(GoodManifest());
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const std::string mutated = halflife::test::Mutated(bytes, random);
    if (mutated == bytes) continue;
    EXPECT_THROW(DecodeManifest(mutated, "m"), DamageError) << "mutation " << i;
  }
}

// Parses the bytes with a corrected hash, as an attacker would write it. The result must be an
// error or a consistent manifest, never a crash.
void FuzzBehindAValidHash(const std::string& bytes) {
  const std::string payload = bytes.substr(16, bytes.size() - 32);
  std::mt19937_64 random(2);
  int num_refused = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string mutated = halflife::test::Mutated(payload, random);
    pb::Manifest message;
    if (!message.ParseFromString(mutated)) {
      ++num_refused;
      continue;
    }
    try {
      const auto replace = [&](pb::Manifest* m) { *m = message; };
      const Manifest manifest = DecodeManifest(Reframed(bytes, replace), "m");
      CheckCoverage(manifest, "m");
      uint64_t data_bytes = 0, file_bytes = 0;
      for (const TensorEntry& t : manifest.tensors) {
        for (const StoredFragment& f : t.fragments) data_bytes += FragmentBytes(f);
      }
      for (const FileEntry& f : manifest.files)
        file_bytes += f.bytes - f.data_offset - kHashBytes * f.num_blocks;
      EXPECT_EQ(data_bytes, file_bytes) << "mutation " << i;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kNoUsableCheckpoint) << error.what();
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 2000);
}

TEST(ManifestFuzzTest, MutationsBehindAValidHash) {
  google::protobuf::SetLogHandler(nullptr);  // protobuf logs each text that is not UTF-8.
  FuzzBehindAValidHash(EncodeManifest(GoodManifest()));
  FuzzBehindAValidHash(EncodeManifest(DerivedManifest(SmallSpecs(), 2)));
}

}  // namespace
}  // namespace halflife::ckpt::test
