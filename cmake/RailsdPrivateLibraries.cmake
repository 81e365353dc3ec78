# Links rails with Abseil and Protobuf of its own, compiled from the sources that `./dev setup build` has fetched. Without
# them, or with another protoc, with those of the system.
find_package(Protobuf REQUIRED)
set(RAILSD_SOURCES $ENV{HOME}/.cache/railsd CACHE PATH "Folder of the fetched sources.")
set(abseil abseil-20220623.1)
set(protobuf protobuf-3.21.12)
string(REPLACE - _ archives "${abseil}.orig.tar.gz;${protobuf}.orig.tar.gz")
list(TRANSFORM archives PREPEND ${RAILSD_SOURCES}/)

set(missing "")
foreach(archive ${archives})
  if(NOT EXISTS ${archive})
    list(APPEND missing ${archive})
  endif()
endforeach()
if(missing OR NOT Protobuf_VERSION VERSION_EQUAL 3.21.12)
  message(WARNING "librails.so is not self-contained: it uses the system's Abseil and Protobuf. It needs protoc 3.21.12 "
    "(this is ${Protobuf_VERSION}) and what `./dev setup build` fetches (missing: ${missing})")
  target_link_libraries(rails PRIVATE railsd_proto absl::status absl::statusor absl::time absl::span absl::function_ref
    absl::strings absl::synchronization absl::flat_hash_map absl::flat_hash_set)
  return()
endif()

set(private ${CMAKE_CURRENT_BINARY_DIR}/private)
if(NOT EXISTS ${private}/${protobuf})
  foreach(archive ${archives})
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${private})
  endforeach()
endif()

file(GLOB_RECURSE sources ${private}/${abseil}/absl/*.cc)
list(FILTER sources EXCLUDE REGEX "/absl/(flags|random|types)/|/str_format/|test|benchmark|print_hash_of|gentables")
foreach(name
    any_lite arena arenastring arenaz_sampler extension_set generated_enum_util generated_message_tctable_lite
    generated_message_util implicit_weak_message inlined_string_field io/coded_stream io/strtod io/zero_copy_stream
    io/zero_copy_stream_impl io/zero_copy_stream_impl_lite map message_lite parse_context repeated_field
    repeated_ptr_field stubs/bytestream stubs/common stubs/int128 stubs/status stubs/statusor stubs/stringpiece
    stubs/stringprintf stubs/structurally_valid stubs/strutil stubs/time wire_format_lite)
  list(APPEND sources ${private}/${protobuf}/src/google/protobuf/${name}.cc)
endforeach()

# Messages without descriptors need only the small part of Protobuf.
set(messages "")
foreach(name descriptor group job ring session)
  set(proto ${PROJECT_SOURCE_DIR}/proto/rails/v1/${name}.proto)
  set(made ${private}/messages/rails/v1/${name}.pb)
  add_custom_command(OUTPUT ${made}.cc ${made}.h DEPENDS ${proto} VERBATIM
    COMMAND protobuf::protoc --cpp_out=lite:${private}/messages -I ${PROJECT_SOURCE_DIR}/proto ${proto})
  list(APPEND messages ${made}.cc)
endforeach()
file(MAKE_DIRECTORY ${private}/messages)

add_library(rails_private STATIC ${sources} ${messages})
set_target_properties(rails_private PROPERTIES UNITY_BUILD OFF CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(rails_private SYSTEM PUBLIC
  ${private}/${abseil} ${private}/${protobuf}/src ${private}/messages)
# Without NDEBUG, Abseil's mutexes look for deadlocks at every lock and may end the trainer's process.
target_compile_definitions(rails_private PRIVATE HAVE_PTHREAD PUBLIC NDEBUG)
target_compile_options(rails_private PRIVATE -w -ffunction-sections -fdata-sections)
target_link_libraries(rails PRIVATE rails_private)
