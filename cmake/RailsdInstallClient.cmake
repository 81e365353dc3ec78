# Installs the client libraries for other projects. Component `client`: the shared libraries, for programs that are
# linked with them. Component `client-dev`: headers, CMake package, pkg-config files and the static libraries. Installed files
# may be moved.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/railsd)
set_target_properties(rails_client_shared PROPERTIES EXPORT_NAME client)
set_target_properties(rails_client PROPERTIES EXPORT_NAME client_static)
set_target_properties(railsd_proto PROPERTIES EXPORT_NAME proto)
set_target_properties(rails PROPERTIES EXPORT_NAME c)
install(TARGETS rails_client_shared rails EXPORT railsdTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client NAMELINK_COMPONENT client-dev)
install(TARGETS rails_client railsd_proto EXPORT railsdStaticTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client-dev)
install(EXPORT railsdTargets NAMESPACE railsd:: DESTINATION ${package_dir} COMPONENT client-dev)
install(EXPORT railsdStaticTargets NAMESPACE railsd:: DESTINATION ${package_dir} COMPONENT client-dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/client/include/rails ${PROJECT_SOURCE_DIR}/client/c/include/rails DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT client-dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/rails DESTINATION ${CMAKE_INSTALL_DATADIR}/railsd/proto
  COMPONENT client-dev FILES_MATCHING PATTERN "*.proto")

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/railsdConfig.cmake.in
  ${PROJECT_BINARY_DIR}/railsdConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a new minor version may break what links the old one.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/railsdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/railsdConfig.cmake ${PROJECT_BINARY_DIR}/railsdConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT client-dev)

file(RELATIVE_PATH RAILSD_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" RAILSD_PC_TO_PREFIX "${RAILSD_PC_TO_PREFIX}")
foreach(name railsd rails)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/railsd.pc ${PROJECT_BINARY_DIR}/rails.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT client-dev)
