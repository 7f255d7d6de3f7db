// Reads a tokenizer.json into a Tokenizer: the model, the steps before and after it, and the added
// tokens. Every contradiction is reported with file, key, expected and got.
#include <fmt/format.h>

#include <utility>

#include "decode_record/base/error.h"
#include "probe/text/tokenizer.h"
#include "probe/text/tokenizer_impl.h"

namespace blockscope {

namespace {

/// The value of a key; null if it is absent.
JsonView value_or_null(const JsonView& json, const std::string& key) {
  static const nlohmann::json null;
  const auto found = json.find(key);
  return found ? *found : JsonView(null, json.where(), key);
}

/// Old files have no type; the package then tries BPE first, and so do we.
std::variant<BpeModel, UnigramModel> read_model(const JsonView& json) {
  json.expect_object();
  const auto type = json.find("type");
  const std::string name = type ? type->string() : "BPE";
  if (name == "Unigram") return UnigramModel::from_json(json);
  if (name != "BPE") type->fail("BPE or Unigram", "give prompts as input_ids");
  return BpeModel::from_json(json);
}

/// Adds the tokens that a TemplateProcessing puts around one sequence.
void read_template(const JsonView& json, Tokenizer::Impl& impl);

void read_post_processor(const JsonView& json, int depth, Tokenizer::Impl& impl) {
  if (json.raw().is_null()) return;
  const JsonView type_view = json.at("type");
  const std::string type = type_view.string();
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "TemplateProcessing") {
    read_template(json, impl);
  } else if (type == "Sequence" && depth < kMaxComponentDepth) {
    for (const JsonView& step : json.at("processors").elements()) {
      read_post_processor(step, depth + 1, impl);
    }
  } else {
    type_view.fail("one of ByteLevel, TemplateProcessing, Sequence",
                   "this post-processor is not supported; give prompts as input_ids");
  }
}

void read_template(const JsonView& json, Tokenizer::Impl& impl) {
  const JsonView special_tokens = json.at("special_tokens");
  std::vector<TokenId> before;
  std::vector<TokenId> after;
  bool seen_text = false;
  const JsonView single = json.at("single");
  for (const JsonView& item : single.elements()) {
    if (const auto sequence = item.find("Sequence")) {
      if (seen_text || sequence->at("id").string() != "A") {
        item.fail("sequence A exactly once", "pairs of texts are not supported");
      }
      seen_text = true;
      continue;
    }
    const std::string name = item.at("SpecialToken").at("id").string();
    for (const JsonView& id_view : special_tokens.at(name).at("ids").elements()) {
      const auto id = static_cast<TokenId>(id_view.integer(0, kMaxTokenId));
      if (!impl.has_id(id)) id_view.fail("the id of a token");
      (seen_text ? after : before).push_back(id);
    }
  }
  if (!seen_text) single.fail("a template with sequence A");
  impl.prefix.insert(impl.prefix.begin(), before.begin(), before.end());
  impl.suffix.insert(impl.suffix.end(), after.begin(), after.end());
}

}  // namespace

AddedToken read_added_token(const JsonView& json, TokenId id) {
  AddedToken token;
  token.id = id;
  token.content = json.at("content").string();
  token.special = json.boolean_or("special", false);
  token.normalized = json.boolean_or("normalized", !token.special);
  token.lstrip = json.boolean_or("lstrip", false);
  token.rstrip = json.boolean_or("rstrip", false);
  token.single_word = json.boolean_or("single_word", false);
  return token;
}

void Tokenizer::Impl::add_token(const AddedToken& token, const std::string& place) {
  if (token.content.empty()) return;  // the package drops it as well
  if (const auto known = token_to_id(token.content); known && *known != token.id) {
    throw CheckpointError(fmt::format("{}: expected id {} for \"{}\", which has it already, got {}",
                                      place, *known, token.content, token.id));
  }
  const AddedToken* same_id = added.find(token.id);
  const std::string_view owner =
      same_id != nullptr ? std::string_view(same_id->content) : vocabulary().id_to_token(token.id);
  if ((same_id != nullptr || vocabulary().has_token(token.id)) && owner != token.content) {
    throw CheckpointError(
        fmt::format("{}: expected an id of its own for \"{}\", got {}, which belongs to \"{}\"",
                    place, token.content, token.id, owner));
  }
  if (!has_id(token.id) && token.id != next_added_id()) {
    warnings.push_back(fmt::format(
        "{}: \"{}\" has id {} as the file says; the `tokenizers` package would number it {}", place,
        token.content, token.id, next_added_id()));
  }
  added.add(token);
}

void Tokenizer::Impl::finish_added_tokens() {
  for (std::string& warning : added.index(normalizer)) {
    warnings.push_back(where + ": " + std::move(warning));
  }
}

Tokenizer Tokenizer::from_json(std::string_view json_text, const std::string& where) {
  const nlohmann::json document = parse_json(json_text, where);
  const JsonView root(document, where);
  root.expect_object();
  if (const auto version = root.find("version"); version && version->string() != "1.0") {
    version->fail("\"1.0\"", "this file has a newer format than this build knows");
  }
  auto impl = std::make_unique<Impl>();
  impl->where = where;
  impl->model = read_model(root.at("model"));
  impl->normalizer = Normalizer::from_json(value_or_null(root, "normalizer"));
  impl->pre_tokenizer = PreTokenizer::from_json(value_or_null(root, "pre_tokenizer"));
  if (impl->pre_tokenizer.asks_for_the_start() && root.find("normalizer")) {
    root.at("normalizer")
        .fail("null together with prepend_scheme \"first\"",
              "what starts a text is not known after a normalizer");
  }
  impl->decoder = TokenDecoder::from_json(value_or_null(root, "decoder"));
  if (const auto tokens = root.find("added_tokens")) {
    for (const JsonView& item : tokens->elements()) {
      const auto id = static_cast<TokenId>(item.at("id").integer(0, kMaxTokenId));
      impl->add_token(read_added_token(item, id), item.place());
    }
  }
  impl->finish_added_tokens();
  read_post_processor(value_or_null(root, "post_processor"), 0, *impl);
  for (const char* key : {"truncation", "padding"}) {
    if (root.find(key)) {
      impl->warnings.push_back(fmt::format("{}: key {} is ignored", where, key));
    }
  }
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& file) {
  return from_json(read_text_file(file), file.string());
}

}  // namespace blockscope
