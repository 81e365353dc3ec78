# Shared by every target of the project: warnings, sanitizers, compiler cache, linker, and how a test is declared.

set(launcher ${PROJECT_SOURCE_DIR}/cmake/compile ${PROJECT_SOURCE_DIR})
set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
# Debug information without the folder of the checkout: another checkout has the same objects.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(RAILSD_SANITIZE)
  add_compile_options(-fsanitize=${RAILSD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${RAILSD_SANITIZE})
endif()
if(RAILSD_FUZZ)
  add_compile_options(${RAILSD_FUZZ})
endif()
if(RAILSD_SANITIZE STREQUAL thread)
  add_compile_options(-Wno-maybe-uninitialized)
endif()
# A test program runs for seconds: to optimize more costs longer than it saves.
set(RAILSD_TEST_OPTIMIZE -O1)
if(RAILSD_SANITIZE)
  set(RAILSD_TEST_OPTIMIZE ${RAILSD_OPTIMIZE})
endif()

# Warnings for our own code; generated code is exempt.
add_library(railsd_options INTERFACE)
target_compile_options(railsd_options INTERFACE -Wall -Wextra -Wpedantic -Werror)
target_include_directories(railsd_options INTERFACE ${PROJECT_SOURCE_DIR})

# In every program: what ThreadSanitizer has to know of libraries that are not instrumented.
if(RAILSD_SANITIZE STREQUAL thread AND NOT RAILSD_CORE_ONLY)
  set(RAILSD_SANITIZERS ${PROJECT_SOURCE_DIR}/tests/sanitizers)
  add_library(railsd_tsan OBJECT
    ${RAILSD_SANITIZERS}/tsan_abseil.cc ${RAILSD_SANITIZERS}/tsan_grpc.cc ${RAILSD_SANITIZERS}/tsan_options.cc)
  target_link_libraries(railsd_tsan PRIVATE railsd_options)
  target_sources(railsd_options INTERFACE
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:railsd_tsan>>)
endif()

# railsd_computes(TARGET): it fills and compares so many bytes that optimizing pays in every build.
function(railsd_computes target)
  if(RAILSD_SANITIZE)
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# railsd_test(NAME SUITE suite [THREADS] [WAITS] [COUNTS_ALLOCATIONS] [TIMEOUT seconds] SOURCES ... LIBRARIES ...): a
# GoogleTest program, run by `./dev test` under the suite's label. THREADS: several threads meet in it, so ThreadSanitizer runs it too. WAITS: it
# waits more than it computes, so others run beside it. COUNTS_ALLOCATIONS: it replaces operators that sanitizers replace.
function(railsd_test name)
  cmake_parse_arguments(ARG "THREADS;WAITS;COUNTS_ALLOCATIONS" "SUITE;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(ARG_COUNTS_ALLOCATIONS AND RAILSD_SANITIZE OR RAILSD_SANITIZE STREQUAL thread AND NOT ARG_THREADS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)  # a hang, not a slow machine
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE railsd_options ${ARG_LIBRARIES} GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${RAILSD_TEST_OPTIMIZE})
  set_property(GLOBAL APPEND PROPERTY RAILSD_TESTS_${ARG_SUITE} ${name})
  add_test(NAME ${name} COMMAND ${name})
  if(ARG_WAITS)
    list(APPEND ARG_SUITE waits)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_SUITE}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# railsd_fuzzer(NAME SOURCES ... LIBRARIES ...): a libFuzzer program, built only with RAILSD_FUZZ.
function(railsd_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT RAILSD_FUZZ)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE railsd_options ${ARG_LIBRARIES})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_property(GLOBAL APPEND PROPERTY RAILSD_FUZZERS ${name})
endfunction()
