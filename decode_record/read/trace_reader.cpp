#include "decode_record/read/trace_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "decode_record/read/trace_reader_impl.h"
#include "decode_record/schema/trace_header.h"

namespace blockscope {
namespace {

void widen_row(const std::byte* words, std::size_t count, h5::Element element, float* out) {
  if (element == h5::Element::f32) {
    std::memcpy(out, words, count * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t word = 0;
    std::memcpy(&word, words + 2 * i, sizeof(word));
    out[i] = element == h5::Element::bf16 ? std::bit_cast<float>(std::uint32_t{word} << 16U)
                                          : h5::widen(element, word);
  }
}

std::vector<float> to_floats(const std::vector<std::byte>& rows, h5::Element element) {
  std::vector<float> values(rows.size() / h5::size_of(element));
  if (!values.empty()) widen_row(rows.data(), values.size(), element, values.data());
  return values;
}

/// One layer of a row, without padding.
std::vector<std::byte> read_layer(const StoredTrace& raw, Field field, std::int64_t row,
                                  std::int64_t layer) {
  std::vector<std::byte> values = raw.read(field, row, 1, layer);
  if (layer == TraceReader::kAllLayersOfRow || !raw.meta().ragged()) return values;
  const LayerPart own = layer_part(spec_of(field), raw.meta(), static_cast<std::size_t>(layer));
  drop_padding(values.data(), own);
  values.resize(own.bytes());
  return values;
}

std::vector<std::int32_t> to_ints(const std::vector<std::byte>& rows, h5::Element element) {
  if (element == h5::Element::i32) {
    std::vector<std::int32_t> values(rows.size() / sizeof(std::int32_t));
    if (!values.empty()) std::memcpy(values.data(), rows.data(), rows.size());
    return values;
  }
  std::vector<std::int32_t> values(rows.size());
  std::ranges::transform(rows, values.begin(),
                         [](std::byte byte) { return std::to_integer<std::int32_t>(byte); });
  return values;
}

h5::Element checked_element(const StoredTrace& raw, Field field, bool floats) {
  const DatasetSpec& spec = spec_of(field);
  const h5::Element element = file_element(spec, raw.meta());
  const bool is_float = element == h5::Element::f32 || h5::is_half(element);
  if (is_float != floats || element == h5::Element::i64 || !spec.per_row()) {
    throw UsageError(fmt::format("{}: not a dataset of {} with a row axis", spec.path,
                                 floats ? "floats" : "32-bit integers"));
  }
  return element;
}

}  // namespace

TraceReader::Impl::Impl(const std::string& path) : requested(path), raw(path), check_(raw) {
  info.path = raw.path();
  info.meta = raw.meta();
  info.format_version = info.meta.format_version;
  info.partial = info.path.ends_with(".partial");
  check_.pieces();
  read_counts();
  raw.check_not_cut(info.num_rows);
}

void TraceReader::Impl::corrupt(std::string_view what) const {
  throw CorruptTrace(fmt::format("{}: {}. HINT: the file is damaged.", info.path, what));
}

void TraceReader::Impl::read_counts() {
  const Committed& now = raw.committed();
  check_.sequences(now.sequences);
  check_.rows(now.rows);
  raw.set_positions(check_.positions());
  info.num_rows = now.rows;
  info.num_sequences = now.sequences;
  info.complete = now.complete;
  info.file_bytes = static_cast<std::int64_t>(raw.file_bytes());
}

void TraceReader::Impl::check_rows(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || first > info.num_rows || count > info.num_rows - first) {
    throw UsageError(fmt::format("{}: expected rows in [0, {}), got [{}, {} + {})", info.path,
                                 info.num_rows, first, first, count));
  }
}

void TraceReader::Impl::check_sequence(std::int64_t sequence) const {
  if (sequence < 0 || sequence >= info.num_sequences) {
    throw UsageError(fmt::format("{}: expected a sequence in [0, {}), got {}", info.path,
                                 info.num_sequences, sequence));
  }
}

const TraceReader::Impl::Rows& TraceReader::Impl::rows_of(std::int64_t sequence) {
  check_sequence(sequence);
  rows_.resize(static_cast<std::size_t>(info.num_sequences));
  while (rows_indexed_ < info.num_rows) {
    const std::int64_t count = std::min<std::int64_t>(65536, info.num_rows - rows_indexed_);
    const auto owner = raw.column<std::int32_t>(Field::step_sequence, rows_indexed_, count);
    const auto kind = raw.column<std::uint8_t>(Field::step_kind, rows_indexed_, count);
    for (std::size_t i = 0; i < owner.size(); ++i) {
      if (owner[i] < 0 || owner[i] >= info.num_sequences) {
        corrupt(
            fmt::format("/steps/sequence: expected [0, {}), got {}", info.num_sequences, owner[i]));
      }
      Rows& rows = rows_[static_cast<std::size_t>(owner[i])];
      const std::int64_t row = rows_indexed_ + static_cast<std::int64_t>(i);
      rows.all.push_back(row);
      if (kind[i] == static_cast<std::uint8_t>(PassKind::denoise)) rows.denoise.push_back(row);
    }
    rows_indexed_ += count;
  }
  return rows_[static_cast<std::size_t>(sequence)];
}

std::vector<std::int64_t> TraceReader::Impl::prompt(std::int64_t sequence) const {
  const auto start = value<std::int64_t>(Field::sequence_prompt_start, sequence);
  const auto length = value<std::int32_t>(Field::sequence_prompt_length, sequence);
  const auto tokens = raw.column<std::int32_t>(Field::sequence_prompt_token, start, length);
  return {tokens.begin(), tokens.end()};
}

TraceMeta read_trace_meta(const std::string& path) {
  return read_header(open_trace(path, Writer::maybe));
}

TraceReader::TraceReader(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;
TraceReader::~TraceReader() = default;

const TraceInfo& TraceReader::info() const { return impl_->info; }

bool TraceReader::refresh() {
  const TraceInfo before = impl_->info;
  if (existing_trace(impl_->requested) != before.path) {
    impl_ = std::make_unique<Impl>(impl_->requested);  // the writer finished and renamed it
  } else {
    impl_->raw.look();
    impl_->read_counts();
  }
  const TraceInfo& now = impl_->info;
  return now.num_rows != before.num_rows || now.num_sequences != before.num_sequences ||
         now.complete != before.complete || now.path != before.path;
}

bool TraceReader::has(Field field) const { return impl_->raw.has(field); }

StepColumns TraceReader::steps(std::int64_t first_row, std::int64_t count) const {
  impl_->check_rows(first_row, count);
  const auto read = [&]<typename Value>(Field field, std::vector<Value>& values) {
    values = impl_->raw.column<Value>(field, first_row, count);
  };
  StepColumns columns;
  columns.first_row = first_row;
  columns.count = count;
  read(Field::step_sequence, columns.sequence);
  read(Field::step_block, columns.block);
  read(Field::step_block_start, columns.block_start);
  read(Field::step_step, columns.step);
  read(Field::step_context_length, columns.context_length);
  read(Field::step_changed, columns.changed);
  if (has(Field::step_since_read)) {
    read(Field::step_since_read, columns.since_read);
    read(Field::step_rows_read, columns.rows_read);
  }
  read(Field::step_masks_left, columns.masks_left);
  read(Field::step_pass, columns.pass);
  read(Field::step_previous, columns.previous);
  read(Field::step_pass_time_ns, columns.pass_time_ns);
  read(Field::step_kind, columns.kind);
  read(Field::step_recorded, columns.recorded);
  return columns;
}

std::vector<std::int64_t> TraceReader::rows_of(std::int64_t sequence) const {
  return impl_->rows_of(sequence).all;
}

std::vector<float> TraceReader::read_floats(Field field, std::int64_t first_row,
                                            std::int64_t count) const {
  const h5::Element element = checked_element(impl_->raw, field, true);
  impl_->check_rows(first_row, count);
  return to_floats(impl_->raw.read(field, first_row, count, StoredTrace::kAllLayersOfRow), element);
}

std::vector<std::int32_t> TraceReader::read_ints(Field field, std::int64_t first_row,
                                                 std::int64_t count) const {
  const h5::Element element = checked_element(impl_->raw, field, false);
  impl_->check_rows(first_row, count);
  return to_ints(impl_->raw.read(field, first_row, count, StoredTrace::kAllLayersOfRow), element);
}

std::vector<float> TraceReader::read_floats_at(Field field, std::int64_t row,
                                               std::int64_t layer) const {
  const h5::Element element = checked_element(impl_->raw, field, true);
  impl_->check_rows(row, 1);
  return to_floats(read_layer(impl_->raw, field, row, layer), element);
}

std::vector<std::int32_t> TraceReader::read_ints_at(Field field, std::int64_t row,
                                                    std::int64_t layer) const {
  const h5::Element element = checked_element(impl_->raw, field, false);
  impl_->check_rows(row, 1);
  return to_ints(read_layer(impl_->raw, field, row, layer), element);
}

void TraceReader::read_raw(Field field, std::int64_t first_row, std::int64_t count,
                           std::int64_t layer, std::span<std::byte> out) const {
  if (!spec_of(field).per_row()) {
    throw UsageError(fmt::format("{}: not a dataset with a row axis", spec_of(field).path));
  }
  impl_->check_rows(first_row, count);
  impl_->raw.read_into(field, first_row, count, layer, out);
}

void TraceReader::prefetch(Field field, std::int64_t row, std::int64_t layer) const {
  if (!spec_of(field).per_row()) {
    throw UsageError(fmt::format("{}: not a dataset with a row axis", spec_of(field).path));
  }
  impl_->check_rows(row, 1);
  impl_->raw.prefetch(field, row, layer);
}

std::optional<LocatedValues> TraceReader::locate(Field field, std::int64_t row,
                                                 std::int64_t layer) const {
  if (!spec_of(field).per_row()) {
    throw UsageError(fmt::format("{}: not a dataset with a row axis", spec_of(field).path));
  }
  impl_->check_rows(row, 1);
  return impl_->raw.locate(field, row, layer);
}

bool TraceReader::written(Field field, std::int64_t row, std::int64_t layer) const {
  impl_->check_rows(row, 1);
  return impl_->raw.chunk_written(field, row, layer);
}

TraceReader::Prefix TraceReader::prefix(Field field, std::int64_t row, std::int64_t layer,
                                        std::optional<std::size_t> kv_head) const {
  if (field != Field::prefix_key && field != Field::prefix_value) {
    throw UsageError(
        fmt::format("prefix: expected prefix_key or prefix_value, got {}", spec_of(field).path));
  }
  impl_->check_rows(row, 1);
  const StoredTrace& raw = impl_->raw;
  const bool bidirectional = raw.meta().bidirectional;
  const h5::Element element = file_element(spec_of(field), raw.meta());
  struct Stored {
    std::int32_t position;
    std::int64_t element;  // of /prefix/key
  };
  std::vector<Stored> stored;
  std::vector<std::pair<std::int64_t, std::int64_t>>
      pieces;  // [first, end) of the rows that stored
  const auto sequence = impl_->value<std::int32_t>(Field::step_sequence, row);
  for (const std::int64_t earlier : impl_->rows_of(sequence).all) {
    if (earlier > row || (earlier == row && !bidirectional)) break;
    const auto [first, end] = impl_->range(Field::prefix_end, earlier, Field::prefix_position);
    if (first == end) continue;
    pieces.emplace_back(first, end);
    const auto positions = raw.column<std::int32_t>(Field::prefix_position, first, end - first);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      stored.push_back({positions[i], first + static_cast<std::int64_t>(i)});
    }
  }
  // The last of equal positions counts; only a bidirectional model writes a position again.
  std::ranges::stable_sort(stored, {}, &Stored::position);
  std::vector<Stored> latest;
  for (const Stored& one : stored) {
    if (!latest.empty() && latest.back().position == one.position) {
      if (!bidirectional) {
        impl_->corrupt(
            fmt::format("/prefix/position: sequence {} stores a position twice", sequence));
      }
      latest.back() = one;
    } else {
      latest.push_back(one);
    }
  }
  if (bidirectional) {
    const auto start = impl_->value<std::int32_t>(Field::step_block_start, row);
    const auto block = static_cast<std::int32_t>(raw.meta().block_length);
    std::erase_if(latest, [&](const Stored& one) {
      return one.position >= start && one.position < start + block;
    });
  }
  const TraceMeta& meta = raw.meta();
  const auto slot = static_cast<std::size_t>(layer);
  if (layer < 0 || slot >= meta.layers.size() ||
      kv_head.value_or(0) >= std::max<std::size_t>(meta.kv_slots_at(slot), 1)) {
    throw UsageError(fmt::format("{}: prefix: expected a recorded layer and one of its KV heads",
                                 impl_->info.path));
  }
  const std::int64_t window = meta.window_of(meta.layers[slot]);
  if (window > 0) {  // the newest keys
    const auto context = impl_->value<std::int32_t>(Field::step_context_length, row);
    const std::int64_t first = meta.first_key(meta.layers[slot], context);
    std::erase_if(latest, [&](const Stored& one) { return one.position < first; });
  }
  Prefix result;
  for (const Stored& one : latest) result.positions.push_back(one.position);
  const std::size_t heads = meta.kv_heads.size();
  const auto padded = static_cast<std::size_t>(meta.channels());
  const auto dim = static_cast<std::size_t>(meta.channels_at(slot));
  const std::size_t own_heads = kv_head ? 1 : meta.kv_slots_at(slot);
  const std::size_t width = own_heads * dim;
  const std::size_t size = h5::size_of(element);
  result.values.resize(latest.size() * width);
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t i = 0; i < latest.size(); ++i) order.emplace_back(latest[i].element, i);
  std::ranges::sort(order);
  auto next = order.begin();
  for (const auto& [first, end] : pieces) {
    if (next == order.end()) break;
    if (next->first >= end) continue;  // all of them were written again later
    const std::vector<std::byte> words = raw.read(field, first, end - first, layer);
    for (; next != order.end() && next->first < end; ++next) {
      const std::size_t at = static_cast<std::size_t>(next->first - first) * heads;
      for (std::size_t head = 0; head < own_heads; ++head) {
        widen_row(words.data() + (at + kv_head.value_or(head)) * padded * size, dim, element,
                  result.values.data() + next->second * width + head * dim);
      }
    }
  }
  return result;
}

std::int64_t TraceReader::num_pieces() const {
  return std::max<std::int64_t>(impl_->raw.extent(Field::token_offset) - 1, 0);
}

std::string TraceReader::piece(std::int64_t token) const {
  if (token < 0 || token >= num_pieces()) return {};
  const auto bounds = impl_->raw.column<std::int64_t>(Field::token_offset, token, 2);
  const auto bytes = impl_->raw.column<char>(Field::token_bytes, bounds[0], bounds[1] - bounds[0]);
  return {bytes.begin(), bytes.end()};
}

}  // namespace blockscope
