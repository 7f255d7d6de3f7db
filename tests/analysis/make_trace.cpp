// Writes a trace of an odd shape for the oracles: make_trace PATH [flags], see --help and
// trace_maker.h.
#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

#include "tests/analysis/trace_maker.h"
#include "tests/analysis/vast_trace.h"

namespace {

void add_trace_options(CLI::App& app, blockscope::testing::TraceMakerOptions& o) {
  using blockscope::ArrayType;
  using blockscope::SetNormaliser;
  const std::map<std::string, ArrayType> types{{"bf16", ArrayType::bf16}, {"f32", ArrayType::f32}};
  app.add_option("--array-type", o.array_type)->transform(CLI::CheckedTransformer(types));
  app.add_option("--layers", o.layers);
  app.add_option("--heads", o.heads);
  app.add_option("--kv-heads", o.kv_heads);
  app.add_option("--head-dim", o.head_dim);
  app.add_option("--layer-kv-heads", o.layer_kv_heads)->delimiter(',');
  app.add_option("--layer-head-dim", o.layer_head_dim)->delimiter(',');
  app.add_option("--layer-window", o.layer_window)->delimiter(',');
  app.add_flag("--noise", o.noise, "canvases without masks");
  app.add_option("--hidden-size", o.hidden_size);
  app.add_option("--block-length", o.block_length);
  app.add_option("--sequences", o.sequences);
  app.add_option("--blocks", o.blocks);
  app.add_option("--steps", o.steps);
  app.add_option("--prompt", o.prompt, "tokens; 0: the first block has no prefix");
  app.add_flag("--unequal", o.unequal, "sequences of unequal prompts, blocks and steps");
  app.add_flag("--interleaved", o.interleaved, "one batch of all sequences");
  app.add_option("--invalid", o.invalid, "last positions of a block that don't exist");
  app.add_option("--record-layers", o.record_layers)->delimiter(',');
  app.add_option("--record-heads", o.record_heads)->delimiter(',');
  app.add_option("--record-kv-heads", o.record_kv_heads)->delimiter(',');
  app.add_option("--record-steps", o.record_steps)->delimiter(',');
  app.add_option("--record-blocks", o.record_blocks)->delimiter(',');
  app.add_option("--set-size", o.set_size);
  const std::map<std::string, SetNormaliser> normalisers{
      {"prefix", SetNormaliser::prefix}, {"prefix+block", SetNormaliser::prefix_and_block}};
  app.add_option("--set-normaliser", o.set_normaliser)
      ->transform(CLI::CheckedTransformer(normalisers));
  app.add_option("--correlation", o.correlation, "with the step before, 0 to 1");
  app.add_option("--policy", o.policy, "exact, flashblock, or a name only");
  app.add_option("--tau", o.tau, "of flashblock");
  app.add_flag("--shadow", o.shadow);
  app.add_option("--nan", o.nan, "chance of a NaN per layer and dataset");
  app.add_option("--inf", o.inf, "chance of an infinity");
  app.add_option("--zero", o.zero, "chance of a vector of length 0");
  app.add_flag("--partial", o.partial, "stop in the middle, leave PATH.partial");
  app.add_flag("--aborted", o.aborted, "stop in the middle and resume: an aborted sequence");
  app.add_option("--seed", o.seed);
  app.add_option("--digest", o.digest, "of the checkpoint");
}

}  // namespace

int main(int argc, char** argv) {
  blockscope::testing::TraceMakerOptions o;
  std::string path;
  std::string level = "full";
  CLI::App app("Writes a trace in which every dataset follows from random queries, keys, values.");
  app.add_option("path", path, "file to write")->required();
  app.add_option("--level", level, "trajectory, summary, sets, outputs or full");
  add_trace_options(app, o);
  blockscope::testing::VastTraceOptions vast;
  bool is_vast = false;
  auto* flag = app.add_flag("--vast", is_vast, "57 GB of outputs as a sparse file, vast_trace.h");
  app.add_option("--real-rows", vast.real_rows, "rows that have values on disk")->needs(flag);
  app.add_option("--vast-sequences", vast.sequences)->needs(flag);
  CLI11_PARSE(app, argc, argv);
  try {
    if (is_vast) {
      blockscope::testing::make_vast_trace(path, vast);
      return 0;
    }
    o.level = blockscope::parse_record_level(level);
    blockscope::testing::make_trace(path, o);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
