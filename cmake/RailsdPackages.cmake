# Six Debian packages, one of each component: `./dev package` builds them. Everything installed here with EXCLUDE_FROM_ALL
# is for packages alone; `cmake --install` leaves it out.
set(packaging ${PROJECT_SOURCE_DIR}/deploy/packages)
set(systemd ${PROJECT_SOURCE_DIR}/deploy/systemd)

# The daemon as a service.
install(FILES ${packaging}/railsd.yaml DESTINATION /etc/railsd COMPONENT railsd EXCLUDE_FROM_ALL)
install(FILES ${systemd}/railsd.service DESTINATION lib/systemd/system COMPONENT railsd EXCLUDE_FROM_ALL)
install(FILES ${systemd}/railsd.sysusers DESTINATION lib/sysusers.d RENAME railsd.conf
  COMPONENT railsd EXCLUDE_FROM_ALL)
install(FILES ${systemd}/railsd.tmpfiles DESTINATION lib/tmpfiles.d RENAME railsd.conf
  COMPONENT railsd EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/railsd.example.yaml ${PROJECT_SOURCE_DIR}/deploy/RUNBOOK.md
  DESTINATION share/doc/railsd COMPONENT railsd EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/client/examples/all_to_all.cc ${PROJECT_SOURCE_DIR}/client/examples/there_and_back_cuda.cc
    ${PROJECT_SOURCE_DIR}/client/examples/CMakeLists.txt ${PROJECT_SOURCE_DIR}/client/c/examples/all_to_all.c
    ${PROJECT_SOURCE_DIR}/client/c/examples/all_to_all.rs
  DESTINATION share/doc/librailsd-client-dev/examples COMPONENT client-dev EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/client/python/rails DESTINATION lib/python3/dist-packages
  COMPONENT python EXCLUDE_FROM_ALL PATTERN __pycache__ EXCLUDE)
install(PROGRAMS ${PROJECT_SOURCE_DIR}/client/python/examples/all_to_all.py
    ${PROJECT_SOURCE_DIR}/client/python/examples/megatron_dispatcher.py
    ${PROJECT_SOURCE_DIR}/client/python/examples/there_and_back_gpu.py
  DESTINATION share/doc/python3-rails/examples COMPONENT python EXCLUDE_FROM_ALL)
# For the machines that run Prometheus and Grafana.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/dashboards/ DESTINATION share/railsd-dashboards
  COMPONENT dashboards EXCLUDE_FROM_ALL FILES_MATCHING PATTERN *.json PATTERN rails.rules.yaml)
install(FILES ${PROJECT_SOURCE_DIR}/dashboards/METRICS.md ${PROJECT_SOURCE_DIR}/deploy/RUNBOOK.md
  DESTINATION share/doc/railsd-dashboards COMPONENT dashboards EXCLUDE_FROM_ALL)

# Debian wants these in every package: its licence, and what has changed.
set(changelog_script ${PROJECT_SOURCE_DIR}/tools/debian_changelog.py)
foreach(pair railsd:railsd railsctl:railsctl client:librailsd-client client-dev:librailsd-client-dev python:python3-rails
    dashboards:railsd-dashboards)
  string(REGEX MATCH "^(.*):(.*)$" pair ${pair})
  set(component ${CMAKE_MATCH_1})
  set(package ${CMAKE_MATCH_2})
  install(FILES ${packaging}/copyright ${PROJECT_SOURCE_DIR}/CHANGELOG.md
    DESTINATION share/doc/${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(CODE "include(${PROJECT_BINARY_DIR}/CPackVersion.cmake)
    execute_process(COMMAND python3 ${changelog_script} ${package} \"\${RAILSD_VERSION}\"
      \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/${package}/changelog.gz\" COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "railsd maintainers <railsd@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL railsd railsctl client client-dev python dashboards)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SECTION net)

# Its reload is a call of railsctl. On a machine without systemd the small sysusers is enough.
set(CPACK_DEBIAN_RAILSD_PACKAGE_NAME railsd)
set(CPACK_COMPONENT_RAILSD_DESCRIPTION "Daemon that owns all network rails of a node
It runs the all-to-all exchanges of mixture-of-experts training over them and gives each chunk to the rail that
will finish it first. Trainers hand it jobs through librailsd-client and shared memory.")
set(CPACK_DEBIAN_RAILSD_PACKAGE_RECOMMENDS ibverbs-providers)
set(CPACK_DEBIAN_RAILSD_PACKAGE_CONTROL_EXTRA
  "${packaging}/postinst;${packaging}/prerm;${packaging}/postrm;${packaging}/conffiles")

set(CPACK_DEBIAN_RAILSCTL_PACKAGE_NAME railsctl)
set(CPACK_COMPONENT_RAILSCTL_DESCRIPTION "Looks at railsd daemons, plans exchanges, replays workloads, measures
Status, rails, peers and jobs of a node, live or as JSON; drains rails; explains where the time of a job went.
With rails_example_all_to_all, a small trainer that checks every byte.")

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME librailsd-client)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION "Client libraries of railsd
With them training processes share memory with the daemon of their node and hand it all-to-all jobs: librails_client
from C++, librails from C and other languages.")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

set(CPACK_DEBIAN_CLIENT-DEV_PACKAGE_NAME librailsd-client-dev)
set(CPACK_DEBIAN_CLIENT-DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_CLIENT-DEV_DESCRIPTION "Client libraries of railsd, to compile with
Headers, CMake package, pkg-config files, examples, and static libraries, which need libprotobuf-dev besides.")
set(CPACK_DEBIAN_CLIENT-DEV_PACKAGE_SUGGESTS libprotobuf-dev)

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-rails)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "librailsd-client, python3 (>= 3.9), python3-numpy (>= 1:1.22)")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS python3-torch)
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA "${packaging}/python/postinst;${packaging}/python/prerm")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "Client of railsd for Python
With it training processes share NumPy arrays with the daemon of their node, also as tensors of PyTorch, and hand it
all-to-all jobs. Pure Python on librails.so.")

set(CPACK_DEBIAN_DASHBOARDS_PACKAGE_NAME railsd-dashboards)
set(CPACK_DEBIAN_DASHBOARDS_PACKAGE_SECTION net)
set(CPACK_DEBIAN_DASHBOARDS_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DASHBOARDS_PACKAGE_SUGGESTS prometheus)
set(CPACK_COMPONENT_DASHBOARDS_DESCRIPTION "Dashboards and alerts for railsd
Dashboards for Grafana, recording rules and alerts for Prometheus, in /usr/share/railsd-dashboards; what each metric
means, and what to do when an alert fires.")

# The version of the packages is found when they are made, as that of the programs is when they are built.
configure_file(${CMAKE_CURRENT_LIST_DIR}/CPackVersion.cmake.in ${PROJECT_BINARY_DIR}/CPackVersion.cmake @ONLY)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_BINARY_DIR}/CPackVersion.cmake)
include(CPack)
