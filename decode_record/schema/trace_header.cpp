#include "decode_record/schema/trace_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "decode_record/schema/trace_texts.h"

namespace blockscope {
namespace {

constexpr std::array<std::string_view, 2> kArrayTypeNames{"bfloat16", "float32"};
constexpr std::array<std::string_view, 2> kNormaliserNames{"prefix", "prefix+block"};
constexpr std::string_view kHeadOrder = "head = kv_head * (num_heads / num_kv_heads) + g";
// A JSON text of the header has a few KB; a larger one comes from a damaged file.
constexpr hsize_t kLargestText = 64U << 20U;

struct IntField {
  const char* name;
  std::int64_t TraceMeta::*member;
};
// Attributes of /model and of the root that are plain integers.
constexpr std::array<IntField, 8> kModelInts{{{"num_layers", &TraceMeta::num_layers},
                                              {"num_heads", &TraceMeta::num_heads},
                                              {"num_kv_heads", &TraceMeta::num_kv_heads},
                                              {"head_dim", &TraceMeta::head_dim},
                                              {"hidden_size", &TraceMeta::hidden_size},
                                              {"vocab_size", &TraceMeta::vocab_size},
                                              {"mask_token_id", &TraceMeta::mask_token_id},
                                              {"logit_shift", &TraceMeta::logit_shift}}};
constexpr std::array<IntField, 3> kRunInts{{{"block_length", &TraceMeta::block_length},
                                            {"set_size", &TraceMeta::set_size},
                                            {"selected_size", &TraceMeta::selected_size}}};
// At the root, only if router choices were recorded: other traces stay as in schema 1.
constexpr std::array<IntField, 2> kRouterInts{{{"experts_per_token", &TraceMeta::experts_per_token},
                                               {"num_experts", &TraceMeta::num_experts}}};

// Likewise, only with /spread: the names of its regions with commas between them, and bins.
constexpr const char* kRegions = "regions";
constexpr const char* kBinsAttribute = "distance_bins";

// Likewise, only with /map. Its layers and heads are coordinates.
constexpr const char* kMapPositions = "map_positions";

// Likewise, only in traces of continuous models.
constexpr std::array<IntField, 2> kContinuousInts{
    {{"block_tokens", &TraceMeta::block_tokens}, {"pair_steps", &TraceMeta::pair_steps}}};

// Likewise, only in traces whose layers differ: 1, and the datasets exist.
constexpr const char* kRagged = "ragged";
struct LayerField {
  Field field;
  std::vector<std::int64_t> LayerSizes::*member;
};
constexpr std::array<LayerField, 3> kLayerSizes{
    {{Field::layer_kv_heads, &LayerSizes::layer_kv_heads},
     {Field::layer_head_dim, &LayerSizes::layer_head_dim},
     {Field::layer_window, &LayerSizes::layer_window}}};

// Likewise, only if they are true.
struct Mark {
  const char* name;
  bool TraceMeta::*member;
};
constexpr std::array<Mark, 10> kMarks{{{"has_cache", &TraceMeta::has_cache},
                                       {"noise_canvas", &TraceMeta::noise_canvas},
                                       {"has_revocations", &TraceMeta::has_revocations},
                                       {"has_kl", &TraceMeta::has_kl},
                                       {"has_draft", &TraceMeta::has_draft},
                                       {"has_set_norms", &TraceMeta::has_set_norms},
                                       {"has_interventions", &TraceMeta::has_interventions},
                                       {"has_answer_blocks", &TraceMeta::has_answer_blocks},
                                       {"has_since_read", &TraceMeta::has_since_read},
                                       {"has_kept_pair", &TraceMeta::has_kept_pair}}};

// Likewise: each is a column of meta.draft_cost. Their length is the attribute kDraftCosts.
constexpr const char* kDraftCosts = "draft_costs";
// Likewise, only with a draft that has a selector.
constexpr const char* kDraftCandidates = "draft_candidates";
// One for each block length. More than this comes from a damaged file.
constexpr std::int64_t kMostDraftCosts = 65536;
struct CostField {
  Field field;
  std::int64_t DraftCost::*member;
};
constexpr std::array<CostField, 4> kCosts{{{Field::cost_block_length, &DraftCost::block_length},
                                           {Field::cost_context_length, &DraftCost::context_length},
                                           {Field::cost_draft_ns, &DraftCost::draft_ns},
                                           {Field::cost_target_ns, &DraftCost::target_ns}}};

struct SelectionField {
  const char* name;
  Field field;
  std::vector<std::int64_t> TraceMeta::*member;
};
constexpr std::array<SelectionField, 3> kSelections{
    {{"layers", Field::layer, &TraceMeta::layers},
     {"heads", Field::head, &TraceMeta::heads},
     {"kv_heads", Field::kv_head, &TraceMeta::kv_heads}}};
constexpr std::array<SelectionField, 2> kMapSelections{
    {{"map_layers", Field::map_layer, &TraceMeta::map_layers},
     {"map_heads", Field::map_head, &TraceMeta::map_heads}}};

template <typename Value>
std::vector<std::byte> to_bytes(const std::vector<Value>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Value));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::int32_t> to_int32(const std::vector<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

std::vector<std::int64_t> piece_offsets(const TraceMeta& meta) {
  std::vector<std::int64_t> offsets{0};
  for (const std::string& piece : meta.pieces) {
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(piece.size()));
  }
  return offsets;
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

/// The smallest distance of each bin from the block, negative before it.
std::vector<std::int32_t> distances(const TraceMeta& meta) {
  std::vector<std::int32_t> values;
  for (std::int64_t bin = meta.distance_bins; bin-- > 0;) values.push_back(-(1 << bin));
  for (std::int64_t bin = 0; meta.bidirectional && bin < meta.distance_bins; ++bin) {
    values.push_back(1 << bin);
  }
  return values;
}

/// Positions of keys of the block, from that of the query.
std::vector<std::int32_t> offsets(const TraceMeta& meta) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(2 * meta.block_length - 1));
  std::iota(values.begin(), values.end(), static_cast<std::int32_t>(1 - meta.block_length));
  return values;
}

std::vector<std::byte> cost_values(const DatasetSpec& spec, const TraceMeta& meta) {
  const auto column = std::ranges::find(kCosts, spec.field, &CostField::field);
  std::vector<std::int64_t> values;
  for (const DraftCost& cost : meta.draft_cost) values.push_back(cost.*column->member);
  return spec.type == ElementType::i32 ? to_bytes(to_int32(values)) : to_bytes(values);
}

[[noreturn]] void corrupt(const h5::File& file, std::string_view what) {
  throw CorruptTrace(fmt::format(
      "{}: {}. HINT: the file is damaged; `blockscope info` on an intact copy shows what "
      "it should hold.",
      file.path, what));
}

std::int64_t required_int(const h5::File& file, const std::string& path, const std::string& name) {
  const auto value = h5::read_int_attribute(file, path, name);
  if (!value) corrupt(file, fmt::format("attribute {} of {} is missing or no integer", name, path));
  return *value;
}

std::string required_string(const h5::File& file, const std::string& name) {
  const auto value = h5::read_string_attribute(file, "/", name);
  if (!value) corrupt(file, fmt::format("attribute {} of / is missing or no string", name));
  return *value;
}

template <std::size_t N>
std::uint8_t index_of(const h5::File& file, const std::array<std::string_view, N>& names,
                      const std::string& attribute) {
  const std::string value = required_string(file, attribute);
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == value) return static_cast<std::uint8_t>(i);
  }
  corrupt(file, fmt::format("attribute {} of /: expected one of {}, got '{}'", attribute,
                            fmt::join(names, ", "), value));
}

std::vector<std::int64_t> read_coordinate(const h5::File& file, Field field) {
  const DatasetSpec& spec = spec_of(field);
  const h5::Dataset dataset =
      h5::open_dataset(file, std::string(spec.path), h5::Element::i32, spec.rank);
  if (dataset.extent[0] > 65536) corrupt(file, fmt::format("{} is too long", spec.path));
  std::vector<std::int32_t> values(dataset.extent[0]);
  const std::array<hsize_t, 1> start{0};
  if (!values.empty()) h5::read(dataset, start, dataset.extent, values.data());
  return {values.begin(), values.end()};
}

std::vector<std::int64_t> read_cost(const h5::File& file, Field field, std::size_t count) {
  const DatasetSpec& spec = spec_of(field);
  const auto read = [&]<typename Value>(h5::Element element) -> std::vector<std::int64_t> {
    const h5::Dataset dataset = h5::open_dataset(file, std::string(spec.path), element, spec.rank);
    if (dataset.extent[0] != count) {
      corrupt(file, fmt::format("{}: expected [{}], as attribute {} of / says, got [{}]", spec.path,
                                count, kDraftCosts, dataset.extent[0]));
    }
    std::vector<Value> values(count);
    const std::array<hsize_t, 1> start{0};
    h5::read(dataset, start, dataset.extent, values.data());
    return {values.begin(), values.end()};
  };
  if (spec.type == ElementType::i32) return read.operator()<std::int32_t>(h5::Element::i32);
  return read.operator()<std::int64_t>(h5::Element::i64);
}

std::vector<DraftCost> read_costs(const h5::File& file) {
  const std::int64_t count = h5::read_int_attribute(file, "/", kDraftCosts).value_or(0);
  if (count < 0 || count > kMostDraftCosts) {
    corrupt(file, fmt::format("attribute {} of /: expected 0 to {}, got {}", kDraftCosts,
                              kMostDraftCosts, count));
  }
  std::vector<DraftCost> costs(static_cast<std::size_t>(count));
  for (const CostField& column : kCosts) {
    if (count == 0) break;
    const std::vector<std::int64_t> values = read_cost(file, column.field, costs.size());
    for (std::size_t i = 0; i < costs.size(); ++i) costs[i].*column.member = values[i];
  }
  return costs;
}

std::string read_text(const h5::File& file, Field field) {
  const DatasetSpec& spec = spec_of(field);
  const h5::Dataset dataset =
      h5::open_dataset(file, std::string(spec.path), h5::Element::u8, spec.rank);
  if (dataset.extent[0] > kLargestText) corrupt(file, fmt::format("{} is too long", spec.path));
  std::string text(dataset.extent[0], '\0');
  const std::array<hsize_t, 1> start{0};
  if (!text.empty()) h5::read(dataset, start, dataset.extent, text.data());
  return text;
}

std::int64_t read_version(const h5::File& file) {
  const auto format = h5::read_string_attribute(file, "/", "format");
  if (format != kTraceFormat) {
    throw NotATrace(
        fmt::format("{}: expected an HDF5 file whose attribute format is '{}', got "
                    "'{}'. HINT: traces come from `blockscope capture`.",
                    file.path, kTraceFormat, format.value_or("nothing")));
  }
  const std::int64_t version = required_int(file, "/", "format_version");
  if (version > kRaggedFormatVersion) {
    throw UnsupportedVersion(
        fmt::format("{}: expected format_version up to {}, got {}. HINT: use a newer blockscope.",
                    file.path, kRaggedFormatVersion, version));
  }
  if (version < 1) corrupt(file, fmt::format("format_version {} does not exist", version));
  return version;
}

}  // namespace

h5::Element file_element(const DatasetSpec& spec, const TraceMeta& meta) {
  switch (spec.type) {
    case ElementType::u8:
      return h5::Element::u8;
    case ElementType::i32:
      return h5::Element::i32;
    case ElementType::i64:
      return h5::Element::i64;
    case ElementType::array:
      if (meta.array_type == ArrayType::bf16) return h5::Element::bf16;
      break;
    case ElementType::f16:
      return h5::Element::f16;
    case ElementType::f32:
      break;
  }
  return h5::Element::f32;
}

std::string stored_path(const DatasetSpec& spec, const TraceMeta& meta) {
  struct Renamed {
    Field field;
    std::string_view path;
  };
  static constexpr std::array kSchema1{
      Renamed{Field::step_changed, "/steps/transferred"},
      Renamed{Field::target_rank_under_draft, "/draft/target_rank"},
      Renamed{Field::target_probability_under_draft, "/draft/target_probability"},
      Renamed{Field::drafted_rank_under_target, "/draft/draft_rank"},
      Renamed{Field::drafted_probability_under_target, "/draft/draft_probability"},
  };
  const auto* const old = std::ranges::find(kSchema1, spec.field, &Renamed::field);
  const bool renamed = meta.format_version == 1 && old != kSchema1.end();
  return std::string(renamed ? old->path : spec.path);
}

void write_header_attributes(const h5::File& file, const TraceMeta& meta) {
  h5::write_attribute(file, "/", "format", kTraceFormat);
  h5::write_attribute(file, "/", "format_version", version_of(meta));
  h5::write_attribute(file, "/", "level", to_string(meta.level));
  h5::write_attribute(file, "/", "lse_base", "e");
  h5::write_attribute(file, "/", "softmax_scale", meta.softmax_scale);
  h5::write_attribute(file, "/", "head_order", kHeadOrder);
  h5::write_attribute(file, "/", "set_normaliser",
                      kNormaliserNames[static_cast<std::size_t>(meta.set_normaliser)]);
  h5::write_attribute(file, "/", "array_type",
                      kArrayTypeNames[static_cast<std::size_t>(meta.array_type)]);
  h5::write_attribute(file, "/", "has_residual", std::int64_t{meta.has_residual});
  h5::write_attribute(file, "/", "has_shadow", std::int64_t{meta.has_shadow});
  h5::write_attribute(file, "/model", "bidirectional", std::int64_t{meta.bidirectional});
  for (const IntField& field : kRunInts) {
    h5::write_attribute(file, "/", field.name, meta.*field.member);
  }
  for (const IntField& field : kRouterInts) {
    if (meta.experts_per_token > 0) {
      h5::write_attribute(file, "/", field.name, meta.*field.member);
    }
  }
  if (!meta.regions.empty()) {
    h5::write_attribute(file, "/", kRegions, fmt::format("{}", fmt::join(meta.regions, ",")));
    h5::write_attribute(file, "/", kBinsAttribute, meta.distance_bins);
  }
  for (const IntField& field : kContinuousInts) {
    if (meta.continuous()) h5::write_attribute(file, "/", field.name, meta.*field.member);
  }
  if (exists_in(spec_of(Field::map_weight), meta)) {
    h5::write_attribute(file, "/", kMapPositions, meta.map_positions);
  }
  if (meta.ragged()) h5::write_attribute(file, "/", kRagged, std::int64_t{1});
  for (const Mark& mark : kMarks) {
    if (meta.*mark.member) h5::write_attribute(file, "/", mark.name, std::int64_t{1});
  }
  if (!meta.draft_cost.empty()) {
    h5::write_attribute(file, "/", kDraftCosts, static_cast<std::int64_t>(meta.draft_cost.size()));
  }
  if (meta.draft_candidates > 0) {
    h5::write_attribute(file, "/", kDraftCandidates, meta.draft_candidates);
  }
  for (const IntField& field : kModelInts) {
    h5::write_attribute(file, "/model", field.name, meta.*field.member);
  }
}

std::vector<std::byte> fixed_values(const DatasetSpec& spec, const TraceMeta& meta) {
  const auto text = [](const std::string& value) {
    return to_bytes(std::vector<char>(value.begin(), value.end()));
  };
  switch (spec.field) {
    case Field::layer:
      return to_bytes(to_int32(meta.layers));
    case Field::head:
      return to_bytes(to_int32(meta.heads));
    case Field::kv_head:
      return to_bytes(to_int32(meta.kv_heads));
    case Field::block_position:
      if (meta.continuous()) return to_bytes(to_int32(meta.block_rows));
      break;
    case Field::map_layer:
      return to_bytes(to_int32(meta.map_layers));
    case Field::map_head:
      return to_bytes(to_int32(meta.map_heads));
    case Field::distance:
      return to_bytes(distances(meta));
    case Field::offset:
      return to_bytes(offsets(meta));
    case Field::answer_block: {
      std::vector<std::int32_t> blocks(static_cast<std::size_t>(kAnswerBlocks));
      std::iota(blocks.begin(), blocks.end(), 1);
      return to_bytes(blocks);
    }
    case Field::tau:
      return to_bytes(std::vector<float>(kReuseTaus.begin(), kReuseTaus.end()));
    case Field::model_json:
      return text(meta.model_json);
    case Field::run_json:
      return text(meta.run_json);
    case Field::token_offset:
      return to_bytes(piece_offsets(meta));
    case Field::token_bytes:
      return text(std::accumulate(meta.pieces.begin(), meta.pieces.end(), std::string()));
    case Field::layer_kv_heads:
    case Field::layer_head_dim:
    case Field::layer_window:
      return to_bytes(
          to_int32(meta.*std::ranges::find(kLayerSizes, spec.field, &LayerField::field)->member));
    case Field::cost_block_length:
    case Field::cost_context_length:
    case Field::cost_draft_ns:
    case Field::cost_target_ns:
      return cost_values(spec, meta);
    default:
      break;
  }
  std::vector<std::int32_t> count_up(static_cast<std::size_t>(axis_length(spec.axes[0], meta)));
  std::iota(count_up.begin(), count_up.end(), 0);
  return to_bytes(count_up);
}

TraceMeta read_header(const h5::File& file) {
  TraceMeta meta;
  meta.format_version = read_version(file);
  meta.level = [&] {
    try {
      return parse_record_level(required_string(file, "level"));
    } catch (const UsageError& error) {
      corrupt(file, error.what());
    }
  }();
  const auto scale = h5::read_double_attribute(file, "/", "softmax_scale");
  if (!scale) corrupt(file, "attribute softmax_scale of / is missing or no number");
  meta.softmax_scale = *scale;
  meta.set_normaliser =
      static_cast<SetNormaliser>(index_of(file, kNormaliserNames, "set_normaliser"));
  meta.array_type = static_cast<ArrayType>(index_of(file, kArrayTypeNames, "array_type"));
  meta.has_residual = required_int(file, "/", "has_residual") != 0;
  meta.has_shadow = required_int(file, "/", "has_shadow") != 0;
  // Older traces, from before such models, don't have it.
  meta.bidirectional = h5::read_int_attribute(file, "/model", "bidirectional").value_or(0) != 0;
  for (const IntField& field : kRunInts) {
    meta.*field.member = required_int(file, "/", field.name);
  }
  for (const IntField& field : kRouterInts) {
    meta.*field.member = h5::read_int_attribute(file, "/", field.name).value_or(0);
  }
  // Traces from before /spread have no regions.
  if (const auto names = h5::read_string_attribute(file, "/", kRegions)) {
    meta.regions = split_at_commas(*names);
    meta.distance_bins = required_int(file, "/", kBinsAttribute);
  }
  for (const Mark& mark : kMarks) {
    meta.*mark.member = h5::read_int_attribute(file, "/", mark.name).value_or(0) != 0;
  }
  for (const IntField& field : kModelInts) {
    meta.*field.member = required_int(file, "/model", field.name);
  }
  for (const SelectionField& selection : kSelections) {
    meta.*selection.member = read_coordinate(file, selection.field);
  }
  if (const auto positions = h5::read_int_attribute(file, "/", kMapPositions)) {
    meta.map_positions = *positions;
    for (const SelectionField& selection : kMapSelections) {
      meta.*selection.member = read_coordinate(file, selection.field);
    }
  }
  for (const IntField& field : kContinuousInts) {
    meta.*field.member = h5::read_int_attribute(file, "/", field.name).value_or(0);
  }
  if (meta.continuous()) meta.block_rows = read_coordinate(file, Field::block_position);
  if (h5::read_int_attribute(file, "/", kRagged).value_or(0) != 0) {
    for (const LayerField& sizes : kLayerSizes) {
      meta.*sizes.member = read_coordinate(file, sizes.field);
    }
  }
  // Versions 1 and 2 hold the same kind of trace.
  const std::int64_t expected = version_of(meta);
  if (std::max(meta.format_version, kTraceFormatVersion) != expected) {
    corrupt(file, fmt::format("expected format_version {}, as attributes block_tokens ({}), ragged "
                              "({}) and noise_canvas ({}) of / say, got {}",
                              expected, meta.block_tokens, int{meta.ragged()},
                              int{meta.noise_canvas}, meta.format_version));
  }
  meta.draft_cost = read_costs(file);
  meta.draft_candidates = h5::read_int_attribute(file, "/", kDraftCandidates).value_or(0);
  meta.model_json = read_text(file, Field::model_json);
  meta.run_json = read_text(file, Field::run_json);
  check_trace_texts(meta, file.path);
  try {
    check_meta(meta);
  } catch (const UsageError& error) {
    corrupt(file, error.what());
  }
  return meta;
}

void check_same_layout(const TraceMeta& file, const TraceMeta& wanted, const std::string& path,
                       const std::string& other) {
  const auto differs = [&](std::string_view name, const auto& there, const auto& here) {
    if (there == here) return;
    if (!other.empty()) {
      throw UsageError(
          fmt::format("{}: {}: expected {}, as in {}, got {}. HINT: only traces of one "
                      "run can be merged.",
                      path, name, here, other, there));
    }
    throw UsageError(
        fmt::format("{}: {}: the trace to resume has {}, this run has {}. HINT: resume "
                    "with the options of the first run.",
                    path, name, there, here));
  };
  for (const IntField& field : kModelInts) {
    differs(field.name, file.*field.member, wanted.*field.member);
  }
  for (const IntField& field : kRunInts) {
    differs(field.name, file.*field.member, wanted.*field.member);
  }
  for (const IntField& field : kRouterInts) {
    differs(field.name, file.*field.member, wanted.*field.member);
  }
  for (const SelectionField& selection : kSelections) {
    differs(selection.name, fmt::format("{}", fmt::join(file.*selection.member, " ")),
            fmt::format("{}", fmt::join(wanted.*selection.member, " ")));
  }
  for (const SelectionField& selection : kMapSelections) {
    differs(selection.name, fmt::format("{}", fmt::join(file.*selection.member, " ")),
            fmt::format("{}", fmt::join(wanted.*selection.member, " ")));
  }
  for (const IntField& field : kContinuousInts) {
    differs(field.name, file.*field.member, wanted.*field.member);
  }
  differs("block_rows", fmt::format("{}", fmt::join(file.block_rows, " ")),
          fmt::format("{}", fmt::join(wanted.block_rows, " ")));
  for (const LayerField& sizes : kLayerSizes) {
    differs(spec_of(sizes.field).path, fmt::format("{}", fmt::join(file.*sizes.member, " ")),
            fmt::format("{}", fmt::join(wanted.*sizes.member, " ")));
  }
  differs(kMapPositions, file.map_positions, wanted.map_positions);
  differs(kDraftCandidates, file.draft_candidates, wanted.draft_candidates);
  differs("level", to_string(file.level), to_string(wanted.level));
  differs("softmax_scale", file.softmax_scale, wanted.softmax_scale);
  differs("array_type", kArrayTypeNames[static_cast<std::size_t>(file.array_type)],
          kArrayTypeNames[static_cast<std::size_t>(wanted.array_type)]);
  differs("set_normaliser", kNormaliserNames[static_cast<std::size_t>(file.set_normaliser)],
          kNormaliserNames[static_cast<std::size_t>(wanted.set_normaliser)]);
  differs("residual", file.has_residual, wanted.has_residual);
  differs("shadow", file.has_shadow, wanted.has_shadow);
  differs(kRegions, fmt::format("{}", fmt::join(file.regions, ",")),
          fmt::format("{}", fmt::join(wanted.regions, ",")));
  differs(kBinsAttribute, file.distance_bins, wanted.distance_bins);
  differs("bidirectional", file.bidirectional, wanted.bidirectional);
  for (const Mark& mark : kMarks) {
    differs(mark.name, file.*mark.member, wanted.*mark.member);
  }
}

}  // namespace blockscope
