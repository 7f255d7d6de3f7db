#include "probe/tasks/task_generator.h"

#include <algorithm>
#include <cstdio>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

using Words = std::vector<TaskWord>;

struct Statement {
  Words words;
  std::size_t slot = 0;  // the filler sentence before which it is placed
  double depth = -1.0;   // filled in by `lay_out`
};

void append(Words& to, const Words& from) { to.insert(to.end(), from.begin(), from.end()); }

/// Splits "Note :| of" style word lists: every element of the list must be a task word.
Words words_of(std::initializer_list<const char*> list) {
  Words words;
  for (const char* text : list) words.push_back(task_words().index(text));
  return words;
}

TaskWord pick(const Words& pool, TaskRandom& random) { return pool[random.below(pool.size())]; }

Words filler_sentence(TaskRandom& random) {
  static const TaskWord the = task_words().index(" the");
  static const TaskWord start_the = task_words().index(" The");
  static const TaskWord start_a = task_words().index(" A");
  static const TaskWord conjunction = task_words().index(" and");
  static const TaskWord stop = task_words().index(".");
  const TaskWords& all = task_words();
  Words words{random.below(4) == 0 ? start_a : start_the};
  if (random.below(2) == 0) words.push_back(pick(all.adjectives, random));
  words.push_back(pick(all.nouns, random));
  words.push_back(pick(all.verbs, random));
  if (random.below(3) == 0) append(words, {conjunction, pick(all.verbs, random)});
  if (random.below(2) == 0) words.push_back(pick(all.adverbs, random));
  if (random.below(4) != 0) {
    append(words, {pick(all.prepositions, random), the});
    if (random.below(2) == 0) words.push_back(pick(all.adjectives, random));
    words.push_back(pick(all.nouns, random));
  }
  words.push_back(stop);
  return words;
}

/// One document under construction: pools without replacement, statements, and what can be asked.
class Writer {
 public:
  Writer(const DocumentSpec& spec, TaskRandom& random)
      : spec_(spec), random_(random), names_(task_words().names), values_(task_words().values) {
    random_.shuffle(names_);
    random_.shuffle(values_);
    budget_ = spec.context_length > 2 ? spec.context_length - 2 : 0;
  }

  TaskDocument write() {
    add_needles(Task::kNeedle, spec_.needles);
    add_needles(Task::kSentence, spec_.sentences);
    for (std::size_t i = 0; i < spec_.chains; ++i) add_chain();
    choose_questions();
    TaskDocument document;
    lay_out(document.context);
    for (Asked& asked : asked_) document.questions.push_back(finish(asked));
    random_.shuffle(document.questions);
    return document;
  }

 private:
  struct Fact {
    Task task;
    Words key;                            // the words of the question
    Words answer;                         // with its full stop
    std::vector<std::size_t> statements;  // indices into statements_
  };
  struct Asked {
    TaskQuestion question;
    std::vector<std::size_t> statements;
  };

  TaskWord take(Words& pool) {
    const TaskWord word = pool.back();
    pool.pop_back();
    return word;
  }

  /// Returns false if the statements do not fit the rest of the context.
  bool add_statements(const std::vector<Words>& list, Fact& fact) {
    std::size_t size = 0;
    for (const Words& words : list) size += words.size();
    if (size > budget_) return false;
    budget_ -= size;
    for (const Words& words : list) {
      fact.statements.push_back(statements_.size());
      statements_.push_back({words, 0, -1.0});
    }
    return true;
  }

  void add_needles(Task task, std::size_t count) {
    static const Words note = words_of({" Note", ":"});
    static const Words of = words_of({" The", " password", " of"});
    static const Words is = words_of({" is"});
    static const Words keeps = words_of({" keeps", " the", " password"});
    static const Words stop = words_of({"."});
    for (std::size_t i = 0; i < count && !names_.empty() && values_.size() >= 2; ++i) {
      const Words name{take(names_)};
      const Words value{take(values_), take(values_)};
      Words statement;
      if (task == Task::kNeedle) {
        statement = note;
        append(statement, name);
      } else if (random_.below(2) == 0) {
        statement = of;
        append(statement, name);
        append(statement, is);
      } else {
        statement = name;
        append(statement, keeps);
      }
      append(statement, value);
      append(statement, stop);
      Fact fact{task, name, name, {}};
      append(fact.answer, value);
      if (add_statements({statement}, fact)) facts_.push_back(std::move(fact));
    }
  }

  void add_chain() {
    static const TaskWord equals = task_words().index(" =");
    static const TaskWord bare_equals = task_words().index("=");
    static const TaskWord stop = task_words().index(".");
    const std::size_t hops = random_.between(2, 4);
    if (values_.size() < hops) return;
    Words variables;
    for (std::size_t i = 0; i < hops; ++i) variables.push_back(take(values_));
    const TaskWord digit = pick(task_words().digits, random_);
    Fact fact{Task::kChain, {variables.front()}, {variables.front()}, {}};
    std::vector<Words> statements;
    for (std::size_t i = 1; i < hops; ++i) {
      statements.push_back({variables[i - 1], equals, variables[i], stop});
      append(fact.answer, {equals, variables[i]});
    }
    statements.push_back({variables.back(), bare_equals, digit, stop});
    append(fact.answer, {bare_equals, digit});
    if (add_statements(statements, fact)) facts_.push_back(std::move(fact));
  }

  void choose_questions() {
    for (std::size_t t = 0; t < kNumTasks; ++t) {
      const Task task = static_cast<Task>(t);
      for (std::size_t i = 0; i < spec_.questions[t]; ++i) {
        if (task == Task::kArithmetic)
          ask_sum();
        else if (task == Task::kCopy)
          ask_copy();
        else if (task == Task::kSort)
          ask_sort();
        else
          ask_facts(task, i);
      }
    }
  }

  void ask_facts(Task task, std::size_t turn) {
    static const TaskWord comma = task_words().index(",");
    std::vector<const Fact*> known;
    for (const Fact& fact : facts_) {
      const bool fits = task == Task::kMultiKey ? fact.task != Task::kChain : fact.task == task;
      if (fits) known.push_back(&fact);
    }
    if (known.empty()) return;
    Words key;
    Words answer;
    std::vector<std::size_t> statements;
    if (task == Task::kMultiKey) {
      random_.shuffle(known);
      const std::size_t count = std::min<std::size_t>(known.size(), random_.between(2, 4));
      for (std::size_t i = 0; i < count; ++i) {
        if (i > 0) {
          key.push_back(comma);
          answer.push_back(comma);
        }
        append(key, known[i]->key);
        append(answer, known[i]->answer);
        append_indices(statements, known[i]->statements);
      }
    } else {
      // Facts of a task take turns, so no question is repeated before all were asked.
      const Fact& fact = *known[turn % known.size()];
      key = fact.key;
      answer = fact.answer;
      statements = fact.statements;
    }
    ask(task, words_of({task == Task::kChain ? "Chain" : "Q", ":"}), key, answer, statements);
  }

  static void append_indices(std::vector<std::size_t>& to, const std::vector<std::size_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  void ask(Task task, const Words& head, const Words& key, const Words& answer,
           std::vector<std::size_t> statements) {
    static const Words newline = words_of({"\n"});
    static const Words reply = words_of({"\n", "A", ":"});
    static const TaskWord stop = task_words().index(".");
    Asked asked{{task, newline, answer, -1.0}, std::move(statements)};
    append(asked.question.question, head);
    append(asked.question.question, key);
    append(asked.question.question, reply);
    asked.question.answer.push_back(stop);
    asked_.push_back(std::move(asked));
  }

  Words number(std::size_t value) const {
    const Words& digits = task_words().digits;
    if (value < 10) return {digits[value]};
    return {digits[value / 10], digits[value % 10]};
  }

  void ask_sum() {
    static const TaskWord plus = task_words().index("+");
    static const TaskWord minus = task_words().index("-");
    static const TaskWord equals = task_words().index("=");
    static const TaskWord semicolon = task_words().index(";");
    constexpr std::size_t kMostTotal = 19;
    const std::size_t terms = random_.between(spec_.least_terms, 4);
    std::size_t total = random_.below(10);
    Words key = number(total);
    Words answer;
    for (std::size_t i = 1; i < terms; ++i) {
      const std::size_t term = random_.below(10);
      const bool subtract = total + term > kMostTotal || (total >= term && random_.below(3) == 0);
      if (i > 1) answer.push_back(semicolon);
      const Words operation{subtract ? minus : plus, task_words().digits[term]};
      append(key, operation);
      append(answer, number(total));
      append(answer, operation);
      total = subtract ? total - term : total + term;
      answer.push_back(equals);
      append(answer, number(total));
    }
    ask(Task::kArithmetic, words_of({"Sum", ":"}), key, answer, {});
  }

  void ask_copy() {
    Words pool = task_words().values;
    random_.shuffle(pool);
    pool.resize(random_.between(4, 12));
    ask(Task::kCopy, words_of({"Copy", ":"}), pool, pool, {});
  }

  void ask_sort() {
    Words pool = task_words().letters;  // in alphabetical order, so indices sort like letters
    random_.shuffle(pool);
    pool.resize(random_.between(4, 8));
    Words sorted = pool;
    std::sort(sorted.begin(), sorted.end());
    ask(Task::kSort, words_of({"Sort", ":"}), pool, sorted, {});
  }

  /// Writes filler sentences up to the context length, with the statements at random places.
  void lay_out(Words& context) {
    static const Words head = words_of({"Text", ":"});
    std::vector<Words> fillers;
    for (;;) {
      Words sentence = filler_sentence(random_);
      if (sentence.size() > budget_) break;
      budget_ -= sentence.size();
      fillers.push_back(std::move(sentence));
    }
    for (Statement& statement : statements_) statement.slot = random_.below(fillers.size() + 1);
    if (spec_.depth >= 0.0) {
      const double last = static_cast<double>(fillers.size());
      for (const Asked& asked : asked_) {
        for (const std::size_t i : asked.statements) {
          statements_[i].slot = static_cast<std::size_t>(spec_.depth * last + 0.5);
        }
      }
    }
    std::vector<std::size_t> order(statements_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    random_.shuffle(order);
    context = head;
    for (std::size_t slot = 0; slot <= fillers.size(); ++slot) {
      for (const std::size_t i : order) {
        if (statements_[i].slot != slot) continue;
        statements_[i].depth = static_cast<double>(context.size());
        append(context, statements_[i].words);
      }
      if (slot < fillers.size()) append(context, fillers[slot]);
    }
    for (Statement& statement : statements_) statement.depth /= static_cast<double>(context.size());
  }

  TaskQuestion finish(Asked& asked) const {
    if (!asked.statements.empty()) {
      double sum = 0.0;
      for (const std::size_t i : asked.statements) sum += statements_[i].depth;
      asked.question.depth = sum / static_cast<double>(asked.statements.size());
    }
    return std::move(asked.question);
  }

  const DocumentSpec& spec_;
  TaskRandom& random_;
  Words names_, values_;
  std::size_t budget_ = 0;  // words of the context not yet written
  std::vector<Statement> statements_;
  std::vector<Fact> facts_;
  std::vector<Asked> asked_;
};

}  // namespace

Task task_from_name(const std::string& name) {
  for (std::size_t t = 0; t < kNumTasks; ++t) {
    if (name == kTaskNames[t]) return static_cast<Task>(t);
  }
  std::string known;
  for (const char* task : kTaskNames) known += std::string(known.empty() ? "" : ", ") + task;
  throw UsageError("--tasks: expected one of " + known + ", got '" + name + "'");
}

TaskDocument make_document(const DocumentSpec& spec, TaskRandom& random) {
  return Writer(spec, random).write();
}

std::size_t needles_for_context(std::size_t context_length) {
  if (context_length < 128) return 4;
  if (context_length < 256) return 8;
  if (context_length < 512) return 12;
  if (context_length < 1024) return 16;
  return context_length < 2048 ? 24 : 32;
}

TaskPrompt make_prompt(Task task, std::size_t context_length, TaskSplit split, std::uint64_t seed,
                       std::uint64_t index, std::optional<double> depth) {
  // The longest question: "\nCopy:" + 12 words + "\nA:".
  constexpr std::size_t kLongestQuestion = 18;
  if (context_length < 64) {
    throw UsageError("--context: expected at least 64 words, got " +
                     std::to_string(context_length));
  }
  const auto t = static_cast<std::size_t>(task);
  TaskRandom random(split, (seed & 0xffff) * kNumTasks + t, (index << 12) ^ context_length);
  DocumentSpec spec;
  spec.context_length = context_length - kLongestQuestion;
  const std::size_t most = needles_for_context(context_length);
  spec.needles = random.between(most / 2, most);
  const bool wordy = task == Task::kSentence || random.below(2) == 0;
  if (wordy) spec.sentences = std::max<std::size_t>(1, most / 8);
  if (task == Task::kChain || random.below(2) == 0) spec.chains = context_length < 256 ? 1 : 2;
  spec.questions[t] = 1;
  if (task != Task::kChain && task != Task::kMultiKey) spec.depth = random.uniform();
  if (depth.has_value()) {
    if (task != Task::kNeedle && task != Task::kSentence) {
      throw UsageError(
          "--depths: expected needle or sentence, whose answer is in one place, "
          "got the task '" +
          std::string(kTaskNames[t]) + "'");
    }
    spec.depth = *depth;
  }
  const TaskDocument document = make_document(spec, random);
  if (document.questions.empty()) {
    throw UsageError("--context: a prompt of the task " + std::string(kTaskNames[t]) +
                     " does not fit " + std::to_string(context_length) +
                     " words. HINT: use a longer context");
  }
  const TaskQuestion& question = document.questions.front();
  TaskPrompt prompt;
  char id[96];
  std::snprintf(id, sizeof id, "%s-%s-%zu-%llu-%06llu",
                split == TaskSplit::kTest ? "test" : "train", kTaskNames[t], context_length,
                static_cast<unsigned long long>(seed), static_cast<unsigned long long>(index));
  prompt.id = id;
  prompt.task = task;
  prompt.context_length = context_length;
  prompt.depth = question.depth;
  prompt.prompt_words = document.context;
  append(prompt.prompt_words, question.question);
  prompt.answer_words = question.answer;
  prompt.prompt = task_text(prompt.prompt_words);
  prompt.answer = task_text(prompt.answer_words);
  return prompt;
}

std::string task_text(const std::vector<TaskWord>& words) {
  std::string text;
  for (const TaskWord word : words) text += task_words().text[word];
  return text;
}

}  // namespace blockscope
