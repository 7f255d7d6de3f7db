#include "probe/train/training_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr double kPlainWeight = 0.3;  // weight of the mean loss over all rows; the answers': 1
// Noise levels are min(1, U(0,1) * 1.2): a sixth of the blocks are all masks, as at every block's
// first decoding step.

// Rows per attention call: context chunks are multiples of every block length.
constexpr std::int64_t kContextChunk = 256;
constexpr std::int64_t kGroupChunk = 96;

/// GPT-2's byte-level alphabet for the two characters that occur in task words.
std::string byte_level(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ')
      out += "\xc4\xa0";
    else if (c == '\n')
      out += "\xc4\x8a";
    else
      out += c;
  }
  return out;
}

}  // namespace

TokenIds TaskTokens::encode(const std::vector<TaskWord>& words) const {
  TokenIds out;
  out.reserve(words.size());
  for (const TaskWord word : words) out.push_back(ids[word]);
  return out;
}

TaskTokens load_task_tokens(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw CheckpointError(path + ": expected a tokenizer.json, got no readable file");
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (json.is_discarded() || !json.contains("model") || !json["model"].contains("vocab")) {
    throw CheckpointError(path + ": expected a byte-level BPE tokenizer.json with model.vocab");
  }
  const nlohmann::json& vocab = json["model"]["vocab"];
  TaskTokens tokens;
  for (const std::string& word : task_words().text) {
    const auto found = vocab.find(byte_level(word));
    if (found == vocab.end()) {
      throw CheckpointError(path + ": expected one token for the task word '" + word +
                            "', got none. HINT: run models/needle/make_tokenizer.py");
    }
    tokens.ids.push_back(found->get<std::int64_t>());
  }
  const auto special = [&](const std::string& text) {
    for (const nlohmann::json& entry : json.value("added_tokens", nlohmann::json::array())) {
      if (entry.value("content", "") == text) return entry.value("id", std::int64_t{-1});
    }
    throw CheckpointError(path + ": expected the special token " + text + ", got none");
  };
  tokens.end = special("<|endoftext|>");
  tokens.mask = special("<|MASK|>");
  return tokens;
}

void BatchLayout::begin_document() { documents_.emplace_back(); }

std::int64_t BatchLayout::add(const TokenIds& tokens, std::int64_t first_position, int group,
                              int copy) {
  std::vector<Row>& rows = documents_.back();
  const auto first = static_cast<std::int64_t>(rows.size());
  for (const std::int64_t token : tokens) rows.push_back({token, first_position++, group, copy});
  return first;
}

void BatchLayout::add_loss(std::int64_t row, std::int64_t target, int task, int question) {
  losses_.push_back({documents_.size() - 1, row, target, task, question});
}

bool BatchLayout::sees(const Row& query, const Row& key) const {
  const bool own_group = key.group == query.group;
  if (key.group >= 0 && !own_group) return false;
  if (block_length_ == 0) return key.position <= query.position;
  const std::int64_t query_block = query.position / block_length_;
  const std::int64_t key_block = key.position / block_length_;
  if (key.copy == 0)
    return key_block < query_block || (query.copy == 0 && key_block == query_block);
  return own_group && key.copy == query.copy && key_block == query_block;
}

std::vector<RowChunk> BatchLayout::chunks(std::int64_t length) const {
  const auto is_context = [](const Row& row) { return row.group < 0 && row.copy == 0; };
  std::int64_t least_context = length;  // rows that are clean context in every document
  std::int64_t most_context = 0;        // rows that are clean context in some document
  for (const std::vector<Row>& rows : documents_) {
    const auto context = std::count_if(rows.begin(), rows.end(), is_context);
    least_context = std::min(least_context, static_cast<std::int64_t>(context));
    most_context = std::max(most_context, static_cast<std::int64_t>(context));
  }
  std::vector<RowChunk> out;
  for (std::int64_t begin = 0; begin < length;) {
    RowChunk chunk;
    chunk.begin = begin;
    const std::int64_t region_end = begin < least_context ? least_context : length;
    const std::int64_t size = begin < least_context ? kContextChunk : kGroupChunk;
    chunk.end = std::min(begin + size, region_end);
    if (begin < least_context) {
      chunk.shared = chunk.end;  // chunks end with a block; no context row sees a later block
    } else {
      chunk.shared = most_context;
      chunk.own_begin = std::max(chunk.begin, most_context);
      chunk.own_end = std::max(chunk.end, most_context);
      for (const std::vector<Row>& rows : documents_) {
        const auto count = static_cast<std::int64_t>(rows.size());
        const auto group = [&](std::int64_t i) { return rows[static_cast<std::size_t>(i)].group; };
        std::int64_t first = std::min(chunk.begin, count);
        while (first > most_context && first < count && group(first - 1) == group(first)) --first;
        std::int64_t last = std::min(chunk.end, count);
        while (last > 0 && last < count && group(last - 1) == group(last)) ++last;
        if (first < count)
          chunk.own_begin = std::min(chunk.own_begin, std::max(first, most_context));
        chunk.own_end = std::max(chunk.own_end, last);
      }
    }
    out.push_back(chunk);
    begin = chunk.end;
  }
  return out;
}

TrainingBatch BatchLayout::finish(std::int64_t fill_token) const {
  const auto batch = static_cast<std::int64_t>(documents_.size());
  std::size_t longest = 0;
  for (const auto& rows : documents_) longest = std::max(longest, rows.size());
  const auto length = static_cast<std::int64_t>(longest);
  TrainingBatch out;
  out.tokens = at::full({batch, length}, fill_token, at::kLong);
  out.positions = at::zeros({batch, length}, at::kLong);
  out.mask = at::full({batch, 1, length, length}, -std::numeric_limits<float>::infinity());
  auto* token = out.tokens.mutable_data_ptr<std::int64_t>();
  auto* position = out.positions.mutable_data_ptr<std::int64_t>();
  auto* mask = out.mask.mutable_data_ptr<float>();
  out.chunks = chunks(length);
  for (std::size_t s = 0; s < documents_.size(); ++s) {
    const std::vector<Row>& rows = documents_[s];
    for (std::size_t q = 0; q < longest; ++q) {
      float* line = mask + (s * longest + q) * longest;
      // Padding rows see only themselves, because a softmax over nothing would be NaN.
      line[q] = 0.0F;
      if (q >= rows.size()) continue;
      token[s * longest + q] = rows[q].token;
      position[s * longest + q] = rows[q].position;
      for (std::size_t k = 0; k < rows.size(); ++k) {
        if (sees(rows[q], rows[k])) line[k] = 0.0F;
      }
    }
  }
  const auto count = static_cast<std::int64_t>(losses_.size());
  out.rows = at::empty({count}, at::kLong);
  out.targets = at::empty({count}, at::kLong);
  out.weights = at::empty({count}, at::kFloat);
  std::size_t answers = 0;
  for (const Loss& loss : losses_) answers += loss.task >= 0 ? 1 : 0;
  const double plain = kPlainWeight / static_cast<double>(std::max<std::size_t>(losses_.size(), 1));
  const double extra = 1.0 / static_cast<double>(std::max<std::size_t>(answers, 1));
  for (std::size_t m = 0; m < losses_.size(); ++m) {
    const Loss& loss = losses_[m];
    out.rows.mutable_data_ptr<std::int64_t>()[m] =
        static_cast<std::int64_t>(loss.document * longest) + loss.row;
    out.targets.mutable_data_ptr<std::int64_t>()[m] = loss.target;
    out.weights.mutable_data_ptr<float>()[m] =
        static_cast<float>(plain + (loss.task >= 0 ? extra : 0.0));
    out.tasks.push_back(loss.task);
    out.questions.push_back(loss.question);
    out.num_questions = std::max<std::int64_t>(out.num_questions, loss.question + 1);
  }
  return out;
}

TrainingBatch make_backbone_batch(const std::vector<TaskDocument>& documents,
                                  const TaskTokens& tokens) {
  BatchLayout layout(0);
  int running = 0;
  for (const TaskDocument& document : documents) {
    layout.begin_document();
    const TokenIds context = tokens.encode(document.context);
    layout.add(context, 0, -1, 0);
    for (std::size_t i = 0; i + 1 < context.size(); ++i) {
      layout.add_loss(static_cast<std::int64_t>(i), context[i + 1], -1, -1);
    }
    for (std::size_t g = 0; g < document.questions.size(); ++g) {
      const TaskQuestion& question = document.questions[g];
      TokenIds ids = tokens.encode(question.question);
      const std::size_t answer_begin = ids.size();
      const TokenIds answer = tokens.encode(question.answer);
      ids.insert(ids.end(), answer.begin(), answer.end());
      ids.push_back(tokens.end);
      const std::int64_t first =
          layout.add(ids, static_cast<std::int64_t>(context.size()), static_cast<int>(g), 0);
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const bool is_answer = i + 1 >= answer_begin;
        layout.add_loss(first + static_cast<std::int64_t>(i), ids[i + 1],
                        is_answer ? static_cast<int>(question.task) : -1, is_answer ? running : -1);
      }
      ++running;
    }
  }
  return layout.finish(tokens.end);
}

namespace {

/// Masks positions [begin, end) of one block at a random level, at least one of them. The masked
/// rows get a loss.
void add_noisy_block(BatchLayout& layout, const TokenIds& clean, std::size_t begin, std::size_t end,
                     std::int64_t first_position, int group, int copy, const TaskTokens& tokens,
                     int task, int question, TaskRandom& random) {
  const double level = std::min(1.0, random.uniform() * kNoiseReach);
  std::vector<bool> masked(clean.size(), false);
  bool any = false;
  for (std::size_t i = begin; i < end; ++i) {
    masked[i] = random.uniform() < level;
    any = any || masked[i];
  }
  if (!any) masked[begin + random.below(end - begin)] = true;
  TokenIds noisy = clean;
  for (std::size_t i = begin; i < end; ++i) {
    if (masked[i]) noisy[i] = tokens.mask;
  }
  const std::int64_t first = layout.add(noisy, first_position, group, copy);
  for (std::size_t i = begin; i < end; ++i) {
    if (masked[i]) layout.add_loss(first + static_cast<std::int64_t>(i), clean[i], task, question);
  }
}

}  // namespace

TrainingBatch make_diffusion_batch(const std::vector<TaskDocument>& documents,
                                   const TaskTokens& tokens, const NoiseSpec& noise,
                                   TaskRandom& random) {
  const auto block = static_cast<std::size_t>(noise.block_length);
  const auto slice = [&](const TokenIds& ids, std::size_t begin, std::size_t end) {
    return TokenIds(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                    ids.begin() + static_cast<std::ptrdiff_t>(end));
  };
  BatchLayout layout(noise.block_length);
  int running = 0;
  for (const TaskDocument& document : documents) {
    layout.begin_document();
    const TokenIds context = tokens.encode(document.context);
    const std::size_t whole = context.size() / block * block;  // each group repeats the rest
    layout.add(slice(context, 0, whole), 0, -1, 0);
    for (int c = 0; c < noise.context_blocks && whole > 0; ++c) {
      const std::size_t begin = random.below(whole / block) * block;
      add_noisy_block(layout, slice(context, begin, begin + block), 0, block,
                      static_cast<std::int64_t>(begin), -1, c + 1, tokens, -1, -1, random);
    }
    for (std::size_t g = 0; g < document.questions.size(); ++g) {
      const TaskQuestion& question = document.questions[g];
      const int group = static_cast<int>(g);
      TokenIds ids = slice(context, whole, context.size());
      const TokenIds asked = tokens.encode(question.question);
      const TokenIds answer = tokens.encode(question.answer);
      ids.insert(ids.end(), asked.begin(), asked.end());
      const std::size_t answer_begin = ids.size();
      ids.insert(ids.end(), answer.begin(), answer.end());
      ids.push_back(tokens.end);
      ids.resize((ids.size() + block - 1) / block * block, tokens.end);
      const std::size_t last = ids.size() - block;  // no later block sees the last one's clean copy
      if (last > 0) layout.add(slice(ids, 0, last), static_cast<std::int64_t>(whole), group, 0);
      for (std::size_t begin = answer_begin / block * block; begin < ids.size(); begin += block) {
        const std::size_t from = begin < answer_begin ? answer_begin - begin : 0;
        for (int c = 0; c < noise.copies; ++c) {
          add_noisy_block(layout, slice(ids, begin, begin + block), from, block,
                          static_cast<std::int64_t>(whole + begin), group, c + 1, tokens,
                          static_cast<int>(question.task), running, random);
        }
      }
      ++running;
    }
  }
  return layout.finish(tokens.end);
}

}  // namespace blockscope
