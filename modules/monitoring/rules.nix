# Alert rules over the agent's metrics. No rule reads a framebuffer: on unified memory there is none.
let
  alert = name: severity: wait: expr: summary: mend: {
    alert = "Sparkloom${name}";
    inherit expr;
    for = wait;
    labels = { inherit severity; };
    annotations = {
      inherit summary mend;
    };
  };
  page = "critical";
  look = "warning";
in
{
  groups = [
    {
      name = "sparkloom-pair";
      rules = [
        (alert "AgentDown" page "2m" ''up{job="sparkloom"} == 0''
          "The agent on {{ $labels.instance }} does not answer."
          "systemctl status sparkloom-agent; journalctl -u sparkloom-agent"
        )
        (alert "NotReady" page "30m" "sparkloom_ready == 0"
          "The pair has served no checked answer for 30 minutes."
          "sparkloom status; sparkloom logs"
        )
        (alert "NodeUnreachable" page "2m" "sparkloom_node_reachable == 0"
          "The agent of {{ $labels.node }} cannot be reached over the fabric."
          "sparkloom fabric check on both nodes"
        )
        (alert "RankDown" look "5m" "sparkloom_rank_alive == 0 and on() sparkloom_ready == 1"
          "The pair says ready, but no rank runs on {{ $labels.node }}."
          "sparkloom bundle, then sparkloom restart"
        )
        (alert "Restarting" look "0m" "sum(increase(sparkloom_restarts_total[1h])) >= 3"
          "The pair was taken down {{ $value }} times within an hour."
          "sparkloom status shows the causes; sparkloom bundle collects the evidence"
        )
        (alert "NoProgress" page "1m"
          "sparkloom_progress_age_seconds > 240 and on() sparkloom_requests_running > 0"
          "Requests run, but the engine has not moved for {{ $value }} seconds."
          "The agent restarts the pair by itself; if it does not, sparkloom restart"
        )
        (alert "QueueLong" look "10m" "sparkloom_requests_waiting > 8"
          "{{ $value }} requests wait."
          "Raise serving.max_sequences if sparkloom plan says that it fits, or limit the clients"
        )
      ];
    }
    {
      name = "sparkloom-machine";
      rules = [
        (alert "HostMemoryLow" page "5m" "sparkloom_host_memory_available_bytes < 2 * 1024 * 1024 * 1024"
          "{{ $labels.node }} has {{ $value | humanize1024 }}B available."
          "Stop what else runs there; lower the context or raise memory.host_floor_bytes"
        )
        (alert "Swapping" look "10m" "rate(sparkloom_host_swapped_in_pages_total[5m]) > 500"
          "{{ $labels.node }} reads {{ $value | humanize }} pages per second back from swap."
          "sparkloom plan with this node's meminfo"
        )
        (alert "RoceErrors" look "10m" "rate(sparkloom_roce_errors_total[5m]) > 1"
          "{{ $labels.counter }} rises on {{ $labels.node }} {{ $labels.device }}."
          "Check the cable and the MTU of both ends: sparkloom fabric check"
        )
        (alert "GpuHot" look "5m" "sparkloom_gpu_temperature_celsius > 87"
          "The GPU of {{ $labels.node }} has {{ $value }} degrees."
          "Lower the clock cap: services.sparkloom.host.clockCap.maximumMHz"
        )
        (alert "GpuClamped" look "10m"
          "sparkloom_gpu_clock_mhz < 700 and on() sparkloom_requests_running > 0"
          "The GPU of {{ $labels.node }} works at {{ $value }} MHz."
          "A machine in its clamp state recovers only when its power is removed"
        )
        (alert "DraftsRejected" look "30m" ''sparkloom_draft_acceptance{position="0"} < 0.2''
          "Only {{ $value }} of the first drafts are accepted; decoding is slow."
          "sparkloom probe; check that the drafter's revision fits the model"
        )
      ];
    }
  ];
}
