// Checkpoint folders: models saved by transformers open and agree between layouts; what is missing,
// extra, misshapen or pointing elsewhere is listed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "decode_record/base/sha256.h"
#include "probe/checkpoint/checkpoint.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::checkpoint_error;
using test::kData;
using test::TempFolder;
using testing::HasSubstr;
using testing::Not;

/// A copy of a fixture that a test may damage.
class CheckpointCopy {
 public:
  explicit CheckpointCopy(const std::string& name) {
    fs::copy(kData / name, folder_.path(), fs::copy_options::recursive);
  }
  const fs::path& path() const { return folder_.path(); }
  std::string error() const {
    return checkpoint_error([&] { Checkpoint::open(path()); });
  }
  void edit(const std::string& file, const std::function<void(json&)>& change) const {
    json value = json::parse(test::read_text(path() / file));
    change(value);
    test::write_text(path() / file, value.dump());
  }
  /// Rewrites model.safetensors with the tensors that `keep` lets through, possibly reshaped. What
  /// is new has zeros, and a new LM head the embedding's values.
  void rewrite(const std::function<bool(SafetensorsWriter::Entry&)>& keep,
               const std::vector<SafetensorsWriter::Entry>& more = {}) const {
    const auto old = SafetensorsFile::open(path() / "model.safetensors");
    std::vector<SafetensorsWriter::Entry> entries;
    for (const TensorInfo& tensor : old.tensors()) {
      SafetensorsWriter::Entry entry{tensor.name, tensor.dtype, tensor.shape};
      if (keep(entry)) entries.push_back(entry);
    }
    entries.insert(entries.end(), more.begin(), more.end());
    SafetensorsWriter writer(path() / "model.safetensors", entries);
    for (const auto& entry : entries) {
      std::size_t size = tensor_dtype_size(entry.dtype);
      for (const auto extent : entry.shape) size *= static_cast<std::size_t>(extent);
      const TensorInfo* source =
          old.find(entry.name == "lm_head.weight" ? "model.embed_tokens.weight" : entry.name);
      const std::string zeros(size, '\0');
      writer.write(entry.name,
                   source != nullptr ? static_cast<const void*>(source->data) : zeros.data(), size);
    }
    writer.finish();
  }

 private:
  TempFolder folder_;
};

TEST(Checkpoint, OpensAModelSavedByTransformers) {
  const Checkpoint checkpoint = Checkpoint::open(kData / "tiny");
  EXPECT_EQ(checkpoint.config().num_layers, 2);
  EXPECT_TRUE(checkpoint.config().tie_word_embeddings);
  EXPECT_EQ(checkpoint.config().stop_token_ids, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(checkpoint.num_tensors(), expected_tensors(checkpoint.config()).size());
  const TensorInfo& query = checkpoint.at("model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(query.shape, (std::vector<std::int64_t>{24, 16}));
  EXPECT_EQ(query.dtype, TensorDtype::kBF16);
  EXPECT_EQ(checkpoint.find("lm_head.weight"), nullptr);
  EXPECT_THAT(checkpoint_error([&] { checkpoint.at("nope"); }), HasSubstr("\"nope\""));
}

TEST(Checkpoint, WithoutADtypeInTheConfigTakesTheWeights) {
  const CheckpointCopy copy("tiny");
  copy.edit("config.json", [](json& config) {
    config.erase("torch_dtype");
    config.erase("dtype");
  });
  const Checkpoint checkpoint = Checkpoint::open(copy.path());
  EXPECT_EQ(checkpoint.config().dtype, "bfloat16");
  EXPECT_THAT(resolved_table(checkpoint.config()),
              HasSubstr("the weights; config.json names none"));
}

TEST(Checkpoint, DigestsStayWhatTheyWere) {
  // Calibration files and traces out there name these; another value would refuse all of them.
  const std::filesystem::path models = std::filesystem::path(BLOCKSCOPE_SOURCE_DIR) / "models";
  EXPECT_EQ(Checkpoint::open(models / "needle").digest(),
            "19f356bc3725fbbf44a84eeefe4ae2dc1168da5a8fed1b22988057cbae57a83f");
  EXPECT_EQ(Checkpoint::open(models / "needle/backbone").digest(),
            "84119af1c539e2d2923b8ddd8c838ebe9f34fd436a9aa448809ba383157eb6b2");
}

TEST(Checkpoint, ShardedAndSingleFilesHoldTheSameBytesAndTheSameDigest) {
  const Checkpoint single = Checkpoint::open(kData / "tiny");
  const Checkpoint sharded = Checkpoint::open(kData / "tiny_sharded");
  ASSERT_GT(sharded.files().size(), 1u);
  ASSERT_EQ(single.num_tensors(), sharded.num_tensors());
  EXPECT_EQ(single.total_bytes(), sharded.total_bytes());
  for (const TensorInfo& tensor : single.files().front().tensors()) {
    const TensorInfo& other = sharded.at(tensor.name);
    ASSERT_EQ(tensor.size, other.size);
    EXPECT_EQ(std::memcmp(tensor.data, other.data, tensor.size), 0) << tensor.name;
  }
  EXPECT_EQ(single.digest(), sharded.digest());
  EXPECT_EQ(single.digest().size(), 64u);
}

TEST(Checkpoint, TheDigestChangesWithAWeightAndWithTheConfigButNotWithTheStopIds) {
  const std::string original = Checkpoint::open(kData / "tiny").digest();
  const CheckpointCopy weight("tiny");
  std::string bytes = test::read_text(weight.path() / "model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::write_text(weight.path() / "model.safetensors", bytes);
  EXPECT_NE(Checkpoint::open(weight.path()).digest(), original);
  const CheckpointCopy config("tiny");
  config.edit("config.json", [](json& value) { value["rms_norm_eps"] = 1e-5; });
  EXPECT_NE(Checkpoint::open(config.path()).digest(), original);
  const CheckpointCopy stop("tiny");
  stop.edit("generation_config.json", [](json& value) { value["eos_token_id"] = 5; });
  EXPECT_EQ(Checkpoint::open(stop.path()).digest(), original);
}

TEST(Checkpoint, Sha256EqualsThePublishedVectors) {
  const auto hash = [](const std::string& text) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
    const std::size_t part = text.size() / 3;
    Sha256 sha;
    sha.update({bytes, part});
    sha.update({bytes + part, text.size() - part});
    std::string hex;
    for (const std::uint8_t byte : sha.finish()) {
      hex += "0123456789abcdef"[byte >> 4U];
      hex += "0123456789abcdef"[byte & 15U];
    }
    return hex;
  };
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Checkpoint, MissingMisshapenAndUnknownTensorsAreListedTogether) {
  const CheckpointCopy copy("tiny");
  copy.rewrite(
      [](SafetensorsWriter::Entry& entry) {
        if (entry.name == "model.norm.weight") entry.shape = {4, 4};
        return entry.name != "model.layers.0.mlp.up_proj.weight";
      },
      {{"model.surprise", TensorDtype::kF32, {2}}});
  const std::string error = copy.error();
  EXPECT_THAT(error, HasSubstr("missing (1):\n    model.layers.0.mlp.up_proj.weight [24, 16]"));
  EXPECT_THAT(error, HasSubstr("model.norm.weight: expected [16] of F32, F16 or BF16, got [4, 4]"));
  EXPECT_THAT(error, HasSubstr("unknown (1):\n    model.surprise [2]"));
  EXPECT_THAT(error, HasSubstr((copy.path() / "model.safetensors: the weights do not").string()));
  EXPECT_THAT(error, HasSubstr("HINT: weights and config.json must belong to one model"));
}

TEST(Checkpoint, OfShardsThatDoNotFitEachTensorSaysItsOwn) {
  const CheckpointCopy copy("tiny_sharded");
  copy.edit("config.json", [](json& value) {
    value["num_hidden_layers"] = 1;
    value["layer_types"] = std::vector<std::string>{"full_attention"};
  });
  const json index =
      json::parse(test::read_text(copy.path() / "model.safetensors.index.json"))["weight_map"];
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  EXPECT_THAT(copy.error(), HasSubstr((copy.path() / "model.safetensors.index.json:").string()));
  EXPECT_THAT(copy.error(), HasSubstr(name + " [24, 16], in " + index[name].get<std::string>()));
  copy.edit("config.json", [](json& value) { value["intermediate_size"] = 32; });
  EXPECT_THAT(copy.error(), HasSubstr("got [24, 16] of BF16, in model-0"));
}

TEST(Checkpoint, OnlyTheFirstTenOfALongListAreShown) {
  const CheckpointCopy copy("tiny");
  copy.rewrite([](SafetensorsWriter::Entry&) { return false; });
  EXPECT_THAT(copy.error(), HasSubstr("missing (24)"));
  EXPECT_THAT(copy.error(), HasSubstr("and 14 more"));
}

TEST(Checkpoint, AMissingHeadHintsAtTiedEmbeddings) {
  const CheckpointCopy copy("tiny");
  copy.edit("config.json", [](json& value) { value["tie_word_embeddings"] = false; });
  EXPECT_THAT(copy.error(), HasSubstr("lm_head.weight [40, 16]"));
  EXPECT_THAT(copy.error(), HasSubstr("\"tie_word_embeddings\": true"));
  EXPECT_THAT(copy.error(), Not(HasSubstr("must belong to one model")));
}

TEST(Checkpoint, HarmlessExtrasAreLetThroughAndBiasesOnlyWithTheConfigKey) {
  const CheckpointCopy copy("tiny");
  copy.rewrite([](SafetensorsWriter::Entry&) { return true; },
               {{"model.rotary_emb.inv_freq", TensorDtype::kF32, {3}},
                {"lm_head.weight", TensorDtype::kBF16, {40, 16}}});
  EXPECT_NO_THROW(Checkpoint::open(copy.path()));
  copy.edit("config.json", [](json& value) { value["attention_bias"] = true; });
  EXPECT_THAT(copy.error(), HasSubstr("model.layers.0.self_attn.q_proj.bias [24]"));
  EXPECT_THAT(copy.error(), HasSubstr("missing (8)"));
}

TEST(Checkpoint, AHeadBesideATiedEmbeddingMustBeItsCopy) {
  const CheckpointCopy copy("tiny");
  copy.rewrite([](SafetensorsWriter::Entry&) { return true; },
               {{"lm_head.weight", TensorDtype::kBF16, {40, 16}}});
  const fs::path weights = copy.path() / "model.safetensors";
  EXPECT_NO_THROW(Checkpoint::open(copy.path()));
  std::string bytes = test::read_text(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // the LM head is last
  test::write_text(weights, bytes);
  EXPECT_THAT(copy.error(), HasSubstr("tensor \"lm_head.weight\": expected none, or a copy of"));
  EXPECT_THAT(copy.error(), HasSubstr("HINT: set the key to false"));
  for (const auto& [dtype, rows] : {std::pair{TensorDtype::kF32, 40}, {TensorDtype::kBF16, 39}}) {
    const CheckpointCopy other("tiny");
    other.rewrite([](SafetensorsWriter::Entry&) { return true; },
                  {{"lm_head.weight", dtype, {rows, 8}}});
    EXPECT_THAT(other.error(), HasSubstr("expected none, or a copy of"));
  }
}

TEST(Checkpoint, MissingShardsAndLyingIndexesAreNamed) {
  const std::string index = "model.safetensors.index.json";
  const CheckpointCopy missing("tiny_sharded");
  fs::remove(missing.path() / "model-00002-of-00005.safetensors");
  EXPECT_THAT(missing.error(), HasSubstr("1 missing, first \"model-00002-of-00005.safetensors\""));

  const CheckpointCopy moved("tiny_sharded");
  moved.edit(index, [](json& value) {
    value["weight_map"]["model.norm.weight"] = "model-00001-of-00005.safetensors";
  });
  EXPECT_THAT(moved.error(), HasSubstr("tensor \"model.norm.weight\" is in"));

  const CheckpointCopy absent("tiny_sharded");
  absent.edit(index, [](json& value) {
    value["weight_map"]["model.extra"] = "model-00001-of-00005.safetensors";
  });
  EXPECT_THAT(absent.error(), HasSubstr("expected tensor \"model.extra\""));

  for (const json& name :
       {json("../x.safetensors"), json("/etc/passwd"), json(".."), json(""), json(3)}) {
    const CheckpointCopy hostile("tiny_sharded");
    hostile.edit(index, [&](json& value) { value["weight_map"]["model.norm.weight"] = name; });
    EXPECT_THAT(hostile.error(), HasSubstr("the name of a file in the checkpoint's folder"));
  }
  const CheckpointCopy empty("tiny_sharded");
  test::write_text(empty.path() / index, "{}");
  EXPECT_THAT(empty.error(), HasSubstr("weight_map"));
}

TEST(Checkpoint, AFolderWithoutWeightsOrWithACutOffFileIsNamed) {
  const CheckpointCopy copy("tiny");
  const std::string bytes = test::read_text(copy.path() / "model.safetensors");
  test::write_text(copy.path() / "model.safetensors", bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(copy.error(), HasSubstr("cut off"));
  fs::remove(copy.path() / "model.safetensors");
  EXPECT_THAT(copy.error(), HasSubstr("got neither"));
}

}  // namespace
}  // namespace blockscope
