// franz-go with its defaults; the same commands and lines as confluent_program.py:
//
//	franz_go produce BOOTSTRAP TOPIC PARTITIONS
//	franz_go consume BOOTSTRAP GROUP TOPIC...
//	franz_go transform BOOTSTRAP NAME SOURCE TARGET
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	sendEvery    = 10 * time.Millisecond
	pollFor      = 200 * time.Millisecond
	abortedEvery = 5
)

var oneLine sync.Mutex

func say(format string, words ...any) {
	oneLine.Lock()
	defer oneLine.Unlock()
	fmt.Println(strings.ReplaceAll(fmt.Sprintf(format, words...), "\n", " "))
}

func main() {
	ended, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	role, rest := os.Args[1], os.Args[3:]
	seeds := kgo.SeedBrokers(strings.Split(os.Args[2], ",")...)
	var err error
	switch role {
	case "produce":
		err = produce(ended, seeds, rest[0], rest[1])
	case "consume":
		err = consume(ended, seeds, rest[0], rest[1:])
	default:
		err = transform(ended, seeds, rest[0], rest[1], rest[2])
	}
	if err != nil {
		say("error %v", err)
		os.Exit(1)
	}
}

// franz-go's producers are idempotent by default.
func produce(ended context.Context, seeds kgo.Opt, topic, count string) error {
	partitions, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(seeds, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	say("ready")
	for number := 0; ended.Err() == nil; number++ {
		record := &kgo.Record{
			Topic: topic, Partition: int32(number % partitions), Value: []byte(strconv.Itoa(number)),
		}
		client.Produce(context.Background(), record, func(sent *kgo.Record, err error) {
			if err != nil {
				say("error %v", err)
				return
			}
			say("sent %d %s", sent.Partition, sent.Value)
		})
		time.Sleep(sendEvery)
	}
	return client.Flush(context.Background())
}

func consuming(seeds kgo.Opt, group string, topics ...string) []kgo.Opt {
	return []kgo.Opt{
		seeds,
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}
}

// The errors of a poll; its own deadline is none.
func tell(fetches kgo.Fetches) {
	fetches.EachError(func(topic string, partition int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			say("error %s %d %v", topic, partition, err)
		}
	})
}

func consume(ended context.Context, seeds kgo.Opt, group string, topics []string) error {
	// Without the transactions' markers franz-go remembers the leader epoch of the last record, and
	// the offset behind the marker. A marker of a later epoch then looks like lost records.
	options := append(consuming(seeds, group, topics...), kgo.KeepControlRecords())
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	say("ready")
	for ended.Err() == nil {
		fetches := client.PollFetches(ended)
		tell(fetches)
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				say("got %s %d %d %s", r.Topic, r.Partition, r.Offset, r.Value)
			}
		})
	}
	return nil
}

func transform(ended context.Context, seeds kgo.Opt, name, source, target string) error {
	options := append(
		consuming(seeds, name, source),
		kgo.TransactionalID(name),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequireStableFetchOffsets(),
	)
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return err
	}
	defer session.Close()
	say("ready")
	for turn := 1; ended.Err() == nil; {
		polling, over := context.WithTimeout(context.Background(), pollFor)
		fetches := session.PollFetches(polling)
		over()
		tell(fetches)
		count := fetches.NumRecords()
		if count == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			copied := &kgo.Record{Topic: target, Partition: r.Partition, Value: r.Value}
			session.Produce(context.Background(), copied, func(_ *kgo.Record, err error) {
				if err != nil {
					say("error %v", err)
				}
			})
		})
		// An abort would refuse the records that were not sent yet.
		if err := session.Client().Flush(context.Background()); err != nil {
			return err
		}
		commits := turn%abortedEvery != 0
		turn++
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(commits))
		if err != nil {
			return err
		}
		switch {
		case committed:
			say("committed %d", count)
		case commits:
			say("error a transaction of %d records was not committed", count)
		default:
			say("aborted %d", count)
		}
	}
	return nil
}
