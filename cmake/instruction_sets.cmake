# Inner loops that are compiled once for each instruction set; the program chooses among them at run
# time. They are optimised in every build type, with FMA where the instruction set has it (contraction
# only: no fast-math). They include no library header, so no inline function of theirs leaks out.
set(BLOCKSCOPE_FLAGS_baseline -O3 -ffp-contract=fast)
set(BLOCKSCOPE_FLAGS_avx2 ${BLOCKSCOPE_FLAGS_baseline} -mavx2 -mfma -mf16c)
set(BLOCKSCOPE_FLAGS_avx512 ${BLOCKSCOPE_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(BLOCKSCOPE_FLAGS_avx512_bf16 ${BLOCKSCOPE_FLAGS_avx512} -mavx512bf16)

# blockscope_instruction_sets(TARGET HEADER SETS <sets> [FLAGS <flags>]): HEADER is <name>_impl.h with
# make_<name>(); a file in the build folder defines k<Name><Set> for each set, which <name>.h declares.
function(blockscope_instruction_sets target header)
  cmake_parse_arguments(arg "" "" "SETS;FLAGS" ${ARGN})
  file(RELATIVE_PATH include "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/${header}")
  string(REGEX REPLACE "^.*/(.*)_impl\\.h$" "\\1" name "${include}")
  foreach(set IN LISTS arg_SETS)
    if(NOT set STREQUAL "baseline" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      continue()
    endif()
    set(constant k)
    string(REPLACE "_" ";" words "${name}_${set}")
    foreach(word IN LISTS words)
      string(SUBSTRING "${word}" 0 1 first)
      string(SUBSTRING "${word}" 1 -1 rest)
      string(TOUPPER "${first}" first)
      string(APPEND constant "${first}${rest}")
    endforeach()
    set(source "${CMAKE_CURRENT_BINARY_DIR}/instruction_sets/${name}_${set}.cpp")
    file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT
"// @include@ for @set@: written by cmake/instruction_sets.cmake.
#include \"@include@\"

namespace blockscope {

decltype(@constant@) @constant@ = make_@name@(\"@set@\");

}  // namespace blockscope
")
    set_source_files_properties("${source}" PROPERTIES
      COMPILE_OPTIONS "${BLOCKSCOPE_FLAGS_${set}};${arg_FLAGS}")
    target_sources(${target} PRIVATE "${source}")
  endforeach()
endfunction()
