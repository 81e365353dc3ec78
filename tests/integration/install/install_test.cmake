# Installs the client libraries into a new directory, moves it, and builds and runs the examples: that in C++ with
# find_package, shared and static, and with pkg-config; that in C with pkg-config. Arguments: BUILD_DIR, EXAMPLES_DIR,
# LIBDIR, CC, CXX.
cmake_policy(VERSION 3.25)

execute_process(COMMAND mktemp -d OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

# Removes the directory, then ends the test.
function(fail what)
  file(REMOVE_RECURSE ${root})
  message(FATAL_ERROR "${what}")
endfunction()

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    fail("${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# The program must start, reach its client library and report that no daemon listens there.
function(check_program program)
  execute_process(COMMAND ${program} --world 1 --wait 0 ${root}/nowhere RESULT_VARIABLE result ERROR_VARIABLE output)
  if(NOT result EQUAL 1 OR NOT output MATCHES "nowhere/descriptors.sock.*is railsd running")
    fail("${program} ended with ${result}:\n${output}")
  endif()
endfunction()

foreach(component client client-dev)
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${root}/first --component ${component})
endforeach()
file(RENAME ${root}/first ${root}/prefix)

# Ninja, because `./dev` installs it, while make may be missing.
run(${CMAKE_COMMAND} -G Ninja -S ${EXAMPLES_DIR} -B ${root}/build -DCMAKE_PREFIX_PATH=${root}/prefix
  -DCMAKE_CXX_COMPILER=${CXX})
run(${CMAKE_COMMAND} --build ${root}/build)
check_program(${root}/build/all_to_all)

# The static library, for programs that run where the library is not installed.
file(WRITE ${root}/static/CMakeLists.txt "cmake_minimum_required(VERSION 3.16)\nproject(static LANGUAGES CXX)\n"
  "find_package(railsd CONFIG REQUIRED COMPONENTS static)\nadd_executable(all_to_all ${EXAMPLES_DIR}/all_to_all.cc)\n"
  "target_link_libraries(all_to_all PRIVATE railsd::client_static)\n")
run(${CMAKE_COMMAND} -G Ninja -S ${root}/static -B ${root}/build-static -DCMAKE_PREFIX_PATH=${root}/prefix
  -DCMAKE_CXX_COMPILER=${CXX})
run(${CMAKE_COMMAND} --build ${root}/build-static)
check_program(${root}/build-static/all_to_all)

# Every program that the quick start calls after installing packages is in one of those packages.
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${root}/tools --component railsctl)
foreach(program railsctl rails_example_all_to_all)
  if(NOT EXISTS ${root}/tools/bin/${program})
    fail("the package railsctl has no ${program}")
  endif()
endforeach()
check_program(${root}/tools/bin/rails_example_all_to_all)

# The shared library exports only the interface, and no generated code, which could clash with another copy.
find_program(NM nm REQUIRED)
run(${NM} -DC --defined-only ${root}/prefix/${LIBDIR}/librails_client.so)
string(REGEX REPLACE "[0-9a-f]+ [A-Z] [^\n]*rails::(Client|FailedRanks|Group|Job|Segment|Prepared|cuda::(Device|Group|Job|Memory))[^\n]*(\n|$)" "" others "${output}")
if(NOT output MATCHES "rails::Client::Connect" OR NOT others STREQUAL "")
  fail("exported: ${output}")
endif()

# A trainer's process must not get gRPC by it, and so no threads of gRPC.
find_program(LDD ldd REQUIRED)
run(${LDD} ${root}/prefix/${LIBDIR}/librails_client.so)
if(output MATCHES "grpc|libgpr|libssl|cares" OR NOT output MATCHES "libprotobuf")
  fail("the library needs: ${output}")
endif()

find_program(PKG_CONFIG pkg-config REQUIRED)
set(ENV{PKG_CONFIG_PATH} ${root}/prefix/${LIBDIR}/pkgconfig)
set(ENV{LD_LIBRARY_PATH} ${root}/prefix/${LIBDIR})
run(${PKG_CONFIG} --cflags --libs railsd)
string(STRIP "${output}" flags)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${CXX} -std=c++20 ${EXAMPLES_DIR}/all_to_all.cc -o ${root}/by_pkg_config ${flags})
check_program(${root}/by_pkg_config)

# The C interface.
run(${PKG_CONFIG} --cflags --libs rails)
string(STRIP "${output}" flags)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${CC} -std=c11 -Wall -Wextra -Werror -pedantic ${EXAMPLES_DIR}/../c/examples/all_to_all.c -o ${root}/in_c ${flags})
execute_process(COMMAND ${root}/in_c ${root}/nowhere 1 0 RESULT_VARIABLE result ERROR_VARIABLE output)
if(NOT result EQUAL 1 OR NOT output MATCHES "UNAVAILABLE.*nowhere/descriptors.sock.*is railsd running")
  fail("the example in C ended with ${result}:\n${output}")
endif()

# Compiling against the library needs neither gRPC nor protobuf.
file(GLOB_RECURSE headers RELATIVE ${root}/prefix ${root}/prefix/include/*)
if(NOT headers STREQUAL "include/rails/client.h;include/rails/cuda.h;include/rails/rails.h")
  fail("installed headers: ${headers}")
endif()
file(REMOVE_RECURSE ${root})
message("another project finds and uses the installed library ... ok")
