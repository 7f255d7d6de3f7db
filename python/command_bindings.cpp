// main() and add_metric(): the commands of the shell that take metrics of plugins.
#include "analysis/metrics/own_metrics.h"
#include "cli/commands.h"
#include "command_line/exit_code.h"
#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "decode_record/base/error.h"
#include "python/arguments.h"
#include "python/bindings.h"
#include "python/drawing.h"

namespace blockscope::python {
namespace {

/// Throws the exception as one of C++. own_metrics.py makes it one of blockscope/errors.py.
[[noreturn]] void throw_own(const nb::python_error& error) {
  const nb::object errors = nb::module_::import_("blockscope.errors");
  const auto is = [&](const char* name) { return error.matches(errors.attr(name)); };
  const std::string text = nb::cast<std::string>(nb::str(error.value()));
  if (is("Interrupted")) throw InterruptedError(text);
  if (is("UsageError")) throw UsageError(text);
  if (is("TraceError")) throw TraceError(text);
  throw Error(text);
}

/// `compute(traces, layers, steps, blocks, sequences, threads, progress)` returns a result as
/// results.py makes it. It stays until the process ends.
void add_metric(const std::string& name, const std::string& description, const std::string& level,
                nb::object compute) {
  auto* held = new nb::object(std::move(compute));
  add_own_metric(
      {name, description, level,
       [held](const TraceGroup& traces, const std::optional<std::vector<std::int64_t>>& steps,
              const PassOptions& options) {
         const nb::gil_scoped_acquire gil;
         nb::list paths;
         for (std::size_t i = 0; i < traces.size(); ++i) {
           paths.append(to_bytes(traces.trace(i).info().path));
         }
         const nb::object progress =
             nb::cpp_function([&options](std::int64_t done, std::int64_t total) {
               if (options.progress && !options.progress(done, total)) {
                 throw InterruptedError("nothing was written");
               }
             });
         try {
           return to_result(
               nb::cast<nb::dict>((*held)(paths, options.layers, steps, options.rows.blocks,
                                          options.rows.sequences, options.threads, progress)));
         } catch (const nb::python_error& error) {
           throw_own(error);
         }
       }});
}

void add_commands(CLI::App& app) {
  add_analyze_command(app);
  add_report_command(app);
}

/// Their names.
nb::list commands() {
  CLI::App app;
  add_commands(app);
  nb::list names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.append(command->get_name());
  }
  return names;
}

/// Runs a command as the binary does. Returns its exit code.
int run_main(const std::vector<nb::bytes>& words) {
  Arguments arguments(words);
  end_on_signals();
  const nb::gil_scoped_release release;
  CLI::App app{"", "blockscope"};
  add_commands(app);
  return exit_code_of(app, arguments.count(), arguments.values(),
                      [&] { parse_arguments(app, arguments.count(), arguments.values()); });
}

}  // namespace

void bind_commands(nb::module_& module) {
  module.def("add_metric", &add_metric);
  module.def("commands", &commands);
  module.def("main", &run_main);
}

}  // namespace blockscope::python
